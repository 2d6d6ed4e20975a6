package results

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// groupCounts are the numbers of LUNs that are measured.
var groupCounts = []int{1, 2, 4, 8, 16}

// groupCurves are the plots of several LUNs. Where a disk takes its time, the requests that a LUN
// may have in flight are what limits it, as in what is published of arrays; where memory answers,
// processors do. That is from "How many LUNs do I need?" (NetApp community): random reads of 8 KiB,
// as far as its text has figures. Before ONTAP 9.9.1 35,000 with one LUN and 115,000 with 8; since
// then about four times as many with one, and 240,000 with 8.
var groupCurves = []struct {
	file, title, load string
	published         []line
}{
	{"cold", "Random reads of 8 KiB from disks that take 20 ms", "read_cold", []line{
		{name: "published: an array whose threads are of volumes", xys: plotter.XYs{{X: 1, Y: 1}, {X: 8, Y: 115. / 35}}},
		{name: "published: the same with a pool of threads", xys: plotter.XYs{{X: 1, Y: 1}, {X: 8, Y: 240. / 140}}},
	}},
	{"read", "Random reads of 8 KiB from memory", "read", nil},
	{"70-30", "70 % random reads, 30 % mirrored writes of 8 KiB", "70_30", nil},
	{"write", "Random mirrored writes of 8 KiB", "write", nil},
}

// groupLines are the curves of one load: times one LUN, LUNs of both nodes and of one. A curve that
// was not measured is left out; where one is incomplete, there are none.
func groupLines(r Report, load string) (lines []line) {
	for _, where := range []struct{ name, row string }{{"LUNs of both nodes", "both_nodes"}, {"LUNs of one node", "one_node"}} {
		l := line{name: where.name, xys: plotter.XYs{{X: 1, Y: 1}}}
		for _, n := range groupCounts[1:] {
			row, ok := r.Row(fmt.Sprintf("group_%s_%d_luns_%s", load, n, where.row))
			if ok && row.Ratio != nil {
				l.xys = append(l.xys, plotter.XY{X: float64(n), Y: *row.Ratio})
			}
		}
		switch len(l.xys) {
		case len(groupCounts):
			lines = append(lines, l)
		case 1:
		default:
			return nil
		}
	}
	return lines
}

// memberCounts are the numbers of members over which one LUN is spread.
var memberCounts = []int{1, 2, 4, 8}

// rotationLines are the curves of one LUN over members, and the line of disks that add up; nil:
// they were not measured, or are incomplete.
func rotationLines(r Report) (lines []line) {
	add := line{name: "disks that add up"}
	for _, n := range memberCounts {
		add.xys = append(add.xys, plotter.XY{X: float64(n), Y: float64(n)})
	}
	for _, load := range []struct{ name, row string }{{"random reads of 8 KiB, depth 64", "randread_8k"}, {"reads of 1 MiB in sequence, depth 16", "seqread_1m"}} {
		l := line{name: load.name, xys: plotter.XYs{{X: 1, Y: 1}}}
		for _, n := range memberCounts[1:] {
			if row, ok := r.Row(fmt.Sprintf("rotation_%s_%d_members", load.row, n)); ok && row.Ratio != nil {
				l.xys = append(l.xys, plotter.XY{X: float64(n), Y: *row.Ratio})
			}
		}
		if len(l.xys) < len(memberCounts) {
			return nil
		}
		lines = append(lines, l)
	}
	return append(lines, add)
}

// plotTimes shows curves over the number of something, as multiples of one of it; those after the
// measured ones are dashed.
func plotTimes(path, title, of string, counts []int, lines []line, measured int) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, of+"s", "times the rate of one "+of
	p.X.Scale = plot.LogScale{}
	var t ticks
	for _, n := range counts {
		t = append(t, plot.Tick{Value: float64(n), Label: fmt.Sprint(n)})
	}
	p.X.Tick.Marker = t
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	highest := 2.0
	for i, l := range lines {
		curve, points, err := plotter.NewLinePoints(l.xys)
		if err != nil {
			return err
		}
		c := palette[i%len(palette)]
		curve.Color, points.Color, curve.Width = c, c, vg.Points(1.5)
		if i >= measured {
			curve.Dashes, curve.Width = []vg.Length{vg.Points(4), vg.Points(3)}, vg.Points(1)
		}
		p.Add(curve, points)
		p.Legend.Add(l.name, curve, points)
		for _, xy := range l.xys {
			highest = max(highest, xy.Y)
		}
	}
	p.X.Min, p.X.Max = float64(counts[0])*0.93, float64(counts[len(counts)-1])*1.07
	p.Y.Min, p.Y.Max = 0, highest*1.3
	return p.Save(plotWidth, 9*vg.Centimeter, path)
}
