package results

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
)

// Colors that most people can distinguish, also in grey.
var (
	good    = color.RGBA{0x1b, 0x7a, 0x3d, 0xff}
	bad     = color.RGBA{0xb5, 0x3a, 0x1f, 0xff}
	unsure  = color.RGBA{0x9a, 0x9a, 0x9a, 0xff}
	palette = []color.RGBA{{0x1f, 0x4e, 0x9c, 0xff}, {0xd9, 0x82, 0x1b, 0xff}, {0x1b, 0x7a, 0x3d, 0xff}, {0x8a, 0x3f, 0x9c, 0xff}, {0x55, 0x55, 0x55, 0xff}}
)

const plotWidth = 22 * vg.Centimeter

// ticks are labelled values.
type ticks []plot.Tick

func (t ticks) Ticks(_, _ float64) []plot.Tick { return t }

// plotRatios shows ratios as bars from 1, to the right when Gemel is better, on a logarithmic
// scale.
func plotRatios(path, title string, rows []Row) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "times the peer (logarithmic); grey: not claimed"
	var names []string
	for i, r := range rows {
		at := len(rows) - 1 - i
		v := math.Log2(*r.Ratio)
		bar, err := plotter.NewBarChart(plotter.Values{v}, vg.Points(11))
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width = true, float64(at), 0
		switch {
		case r.Resolved != nil && !*r.Resolved:
			bar.Color = unsure
		case v >= 0:
			bar.Color = good
		default:
			bar.Color = bad
		}
		p.Add(bar)
		name := strings.TrimSuffix(r.Name, "_to_"+r.PeerName)
		names = append([]string{fmt.Sprintf("%s to %s: %s", name, r.PeerName, Number(*r.Ratio))}, names...)
	}
	p.NominalY(names...)
	low, high := -1.0, 1.0
	for _, r := range rows {
		low, high = min(low, math.Log2(*r.Ratio)), max(high, math.Log2(*r.Ratio))
	}
	var t ticks
	for e := math.Floor(low); e <= math.Ceil(high); e++ {
		t = append(t, plot.Tick{Value: e, Label: Number(math.Exp2(e))})
	}
	p.X.Tick.Marker = t
	p.X.Min, p.X.Max = math.Floor(low)-0.7, math.Ceil(high)+0.2
	grid := plotter.NewGrid()
	grid.Horizontal.Width = 0
	p.Add(grid)
	return p.Save(plotWidth, vg.Points(float64(16*len(rows)+90)), path)
}

// line is one curve of latency over depth.
type line struct {
	name string
	xys  plotter.XYs
}

// plotLatency shows curves over the queue depth, both axes logarithmic.
func plotLatency(path, title string, depths []int, lines []line) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "requests in flight", "ms (logarithmic)"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var t ticks
	for _, d := range depths {
		t = append(t, plot.Tick{Value: float64(d), Label: fmt.Sprint(d)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = t, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, l := range lines {
		if len(l.xys) == 0 {
			continue
		}
		curve, points, err := plotter.NewLinePoints(l.xys)
		if err != nil {
			return err
		}
		c := palette[i/2%len(palette)]
		curve.Color, points.Color, curve.Width = c, c, vg.Points(1.5)
		if i%2 == 1 {
			curve.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		p.Add(curve, points)
		p.Legend.Add(l.name, curve, points)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = p.X.Min*0.9, p.X.Max*1.1, p.Y.Min*0.8, p.Y.Max*1.2
	return p.Save(plotWidth, 11*vg.Centimeter, path)
}

// plotSeries shows a load over time.
func plotSeries(path, title, label string, series []load.Point, value func(load.Point) float64) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "seconds", label
	var xys plotter.XYs
	for _, s := range series {
		xys = append(xys, plotter.XY{X: s.At, Y: value(s)})
	}
	curve, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	curve.Color, curve.Width = palette[0], vg.Points(1)
	p.Add(plotter.NewGrid(), curve)
	p.Y.Min = 0
	return p.Save(plotWidth, 8*vg.Centimeter, path)
}

// depths that are measured.
var depths = []int{1, 4, 16, 32, 128}

// writePlots writes every plot that the rows allow, and returns the files' names.
func writePlots(dir string, r Report, merge bool) (made map[string]string, err error) {
	made = map[string]string{}
	save := func(name string, f func(path string) error) {
		if err == nil {
			if err = f(filepath.Join(dir, name+".svg")); err == nil {
				made[name] = name + ".svg"
			}
		}
	}
	var compared []Row
	for _, row := range r.Rows {
		if row.Ratio != nil && *row.Ratio > 0 && (row.PeerName == "tgt" || row.PeerName == "qsd") {
			compared = append(compared, row)
		}
	}
	if len(compared) > 0 && !merge {
		save("ratios", func(path string) error {
			return plotRatios(path, "Gemel, mirrored, against tgt (one copy) and qsd (a mirror)", compared)
		})
	}
	for _, kind := range []struct{ name, title, row, peers string }{
		{"write-latency", "4 KiB random writes, hot: p50 (solid), p99 (dashed)", "mirrored_write_4k_qd%d", "unmirrored qsd tgt"},
		{"read-latency", "4 KiB random reads, hot: p50 (solid), p99 (dashed)", "randread_4k_qd%d", "tgt qsd"},
	} {
		if lines := latencyLines(r, kind.row, kind.peers); lines != nil && !merge {
			save(kind.name, func(path string) error { return plotLatency(path, kind.title, depths, lines) })
		}
	}
	if row, ok := r.Row("write_overload"); ok && len(row.Series) > 1 {
		save("overload", func(path string) error {
			return plotSeries(path, "64 KiB writes at twice of what the disks take, for 60 s", "MiB/s acknowledged", row.Series, func(p load.Point) float64 {
				return float64(p.Done) * 64 / 1024 / load.Interval.Seconds()
			})
		})
	}
	if row, ok := r.Row("snapshot_pause_ms"); ok && len(row.Series) > 1 {
		save("snapshot", func(path string) error {
			return plotSeries(path, "Ten snapshots of an image with 200,000 extents", "longest write that ended then, ms", row.Series, func(p load.Point) float64 { return p.Longest })
		})
	}
	for _, c := range groupCurves {
		if lines := groupLines(r, c.load); lines != nil {
			save("groups-"+c.file, func(path string) error {
				return plotTimes(path, c.title, "LUN", groupCounts, append(lines, c.published...), len(lines))
			})
		}
	}
	if lines := rotationLines(r); lines != nil {
		save("rotation", func(path string) error {
			return plotTimes(path, "One LUN over members that take 8 ms for a read", "member", memberCounts, lines, len(lines)-1)
		})
	}
	return made, err
}
