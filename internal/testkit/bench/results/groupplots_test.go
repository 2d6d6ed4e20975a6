package results

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A run of the curves draws them, those that are complete, and a later run of everything else
// leaves their table.
func TestGroupCurves(t *testing.T) {
	var rows []Row
	for _, load := range []string{"read", "write"} {
		for _, n := range groupCounts[1:] {
			for _, where := range []string{"one_node", "both_nodes"} {
				if load == "write" && n == 16 {
					continue
				}
				rows = append(rows, Against(fmt.Sprintf("group_%s_%d_luns_%s", load, n, where), "IOPS", figures("x", 2, 2), figures("one", 2, 2), figures("one", 1, 1), false))
			}
		}
	}
	dir := t.TempDir()
	from, page := filepath.Join(dir, "bench.json"), filepath.Join(dir, "benchmarks.md")
	text := mark("run") + mark("plot groups-read")
	for _, x := range tables {
		text += mark("table " + x.name)
	}
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(r Report, merge bool) string {
		t.Helper()
		if err := Write(from, r); err != nil {
			t.Fatal(err)
		}
		if err := WriteDocs(from, dir, merge); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write(Report{Commit: "abc", Rows: rows}, true)
	svg, err := os.ReadFile(filepath.Join(dir, "benchmarks", "groups-read.svg"))
	if err != nil || !strings.Contains(string(svg), "LUNs of both nodes") {
		t.Errorf("no plot: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "benchmarks", "groups-write.svg")); !os.IsNotExist(err) {
		t.Errorf("a plot of an incomplete curve: %v", err)
	}
	after := write(Report{Commit: "def", Rows: []Row{Worst("failover_pause_10_luns", "ms", []float64{5})}}, false)
	for _, want := range []string{"| `group_read_16_luns_both_nodes` (`abc`) |", "failover_pause_10_luns", "groups-read.svg"} {
		if !strings.Contains(after, want) {
			t.Errorf("%q is missing in\n%s", want, after)
		}
	}
}

func TestRotationCurve(t *testing.T) {
	var r Report
	for _, load := range []string{"randread_8k", "seqread_1m"} {
		for _, n := range memberCounts[1:] {
			if rotationLines(r) != nil {
				t.Error("an incomplete curve is drawn")
			}
			r.Rows = append(r.Rows, Against(fmt.Sprintf("rotation_%s_%d_members", load, n), "IOPS", figures("x", float64(n), float64(n)), figures("one", 1, 1), figures("one", 1, 1), false))
		}
	}
	lines := rotationLines(r)
	if len(lines) != 3 || len(lines[0].xys) != 4 || lines[1].xys[3].Y != 8 || lines[2].xys[3].Y != 8 {
		t.Errorf("%v", lines)
	}
	made, err := writePlots(t.TempDir(), r, true)
	if err != nil || made["rotation"] == "" {
		t.Errorf("%v, %v", made, err)
	}
}
