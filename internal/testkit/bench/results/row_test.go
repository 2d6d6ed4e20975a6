package results

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
)

func figures(name string, values ...float64) *Figures {
	f := &Figures{Name: name, Flags: "some"}
	for _, v := range values {
		h := new(load.Histogram)
		h.Add(time.Millisecond)
		h.Add(3 * time.Millisecond)
		f.Add(v, load.Sample{Hist: h, CPU: map[string]time.Duration{"a": 2 * time.Microsecond}})
	}
	return f
}

// The ratio is that of rounds, not of medians: what slows both in one round does not count.
func TestAgainstComparesRoundByRound(t *testing.T) {
	r := Against("x", "IOPS", figures("gemel", 50, 10, 30), figures("gemel", 50, 11, 30), figures("peer", 25, 5, 10), false)
	if r.Gemel != 30 || *r.Peer != 10 || *r.Ratio != 2 || *r.RatioSpread != (Spread{2, 3}) || *r.GemelSpread != (Spread{10, 50}) {
		t.Errorf("%+v", r)
	}
	if r.Control.Ratio != 1 || r.Control.Min >= 1 || r.Control.Max != 1 || !*r.Resolved {
		t.Errorf("control %+v, resolved %v", r.Control, *r.Resolved)
	}
	if r.GemelCPU["a"] != 2 || r.PeerName != "peer" || r.Gemels.Longest != 3000 || r.Rounds != 3 || r.Peers.Mean != 2000 {
		t.Errorf("%+v, %+v", r, r.Gemels)
	}
	less := Against("x", "us", figures("gemel", 10, 10), figures("gemel", 10, 20), figures("peer", 15, 15), true)
	if *less.Ratio != 1.5 || *less.Resolved {
		t.Errorf("half as long again is a ratio of %v, claimed %v although two equal things differed by a factor of two", *less.Ratio, *less.Resolved)
	}
}

// A row of events is compared with the whole pair, and its control is between two measurements of
// the whole pair.
func TestControlledRowIsClaimedBeyondItsControl(t *testing.T) {
	whole, again := figures("whole", 10, 10, 10), figures("whole", 10, 9, 11)
	for degraded, claimed := range map[float64]bool{5: true, 9.5: false} {
		r := Against("x", "IOPS", figures("lost", degraded, degraded, degraded), nil, whole, false).Controlled(ControlOf(whole, again))
		if r.Control == nil || r.Resolved == nil || *r.Resolved != claimed {
			t.Errorf("%v of 10: control %+v, claimed %v", degraded, r.Control, r.Resolved)
		}
	}
}

// The range of a median holds what the values were drawn from as often as it says, whatever their
// tails, and narrows with their number.
func TestMedianRange(t *testing.T) {
	if r := MedianRange([]float64{3}); *r != (Spread{3, 3}) {
		t.Errorf("of one value: %v", r)
	}
	if r := MedianRange([]float64{5, 1, 4, 2, 3, 8, 7, 6}); *r != (Spread{1, 8}) {
		t.Errorf("of eight values: %v", r)
	}
	if r := MedianRange([]float64{5, 1, 4, 2, 3, 9, 8, 7, 6}); *r != (Spread{2, 8}) {
		t.Errorf("of nine values: %v", r)
	}
	many := make([]float64, 4001)
	for i := range many {
		many[i] = float64(i) - 2000
	}
	if r := MedianRange(many); r.Min != -r.Max || r.Max < 61 || r.Max > 63 { // 1.96 times the root of their number, halved
		t.Errorf("of 4,001 values: %v", r)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	const tries = 4000
	var width [2]float64
	for i, n := range []int{11, 99} {
		held := 0
		for range tries {
			v := make([]float64, n)
			for j := range v {
				v[j] = math.Exp(rnd.NormFloat64() * rnd.ExpFloat64()) // a median of 1, and a long tail
			}
			r := MedianRange(v)
			width[i] += math.Log(r.Max/r.Min) / tries
			if r.holds(1) {
				held++
			}
		}
		if share := float64(held) / tries; share < 0.94 || share > 0.99 {
			t.Errorf("of %d values: the range held the median in %.3f of %d tries", n, share, tries)
		}
	}
	if width[1] > width[0]/2 {
		t.Errorf("99 values give a range of %.3f, 11 values one of %.3f", width[1], width[0])
	}
}

// Nothing is claimed of a ratio whose own rounds were on both sides of 1, however quiet the control
// was.
func TestRatioOfItsOwn(t *testing.T) {
	r := Against("x", "IOPS", figures("gemel", 10, 20, 30), figures("gemel", 10, 20, 30), figures("peer", 20, 10, 15), false)
	if *r.Ratio != 2 || *r.Resolved || *r.RatioRange != (Spread{0.5, 2}) {
		t.Errorf("ratio %v within %v, claimed: %v", *r.Ratio, *r.RatioRange, *r.Resolved)
	}
}

func TestWorstOfEvents(t *testing.T) {
	p := Worst("pause", "ms", Milliseconds(3*time.Millisecond, 9*time.Millisecond, time.Millisecond))
	if p.Gemel != 9 || p.GemelSpread.Min != 1 || p.Peer != nil || p.Ratio != nil || p.Rounds != 3 {
		t.Errorf("%+v", p)
	}
	if Median(nil) != 0 || Median([]float64{4, 1}) != 2.5 || Median([]float64{4, 1, 3}) != 3 {
		t.Error("medians")
	}
}

func TestNumberText(t *testing.T) {
	for want, v := range map[string]float64{"0": 0, "12345": 12345.4, "12.3": 12.34, "1.23": 1.234, "0.012": 0.0123} {
		if got := Number(v); got != want {
			t.Errorf("%v is printed as %q, want %q", v, got, want)
		}
	}
}

// What is written is read again, with the fields that others rely on.
func TestReportIsReadAsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "bench.json")
	row := Against("x", "IOPS", figures("gemel", 2, 2), figures("gemel", 2, 2), figures("peer", 1, 1), false)
	if err := Write(path, Report{Commit: "c", Rows: []Row{row, Worst("pause", "ms", []float64{1})}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ Rows []map[string]any }
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"name", "gemel", "peer", "ratio", "unit"} {
		if _, ok := back.Rows[1][key]; !ok {
			t.Errorf("no %q in %v", key, back.Rows[1])
		}
	}
	l, _ := back.Rows[0]["gemel_latency_us"].(map[string]any)
	if back.Rows[1]["peer"] != nil || back.Rows[0]["ratio"] != 2.0 || l["p999"] != 3000.0 || back.Rows[0]["gemel_cpu_us_per_op"] == nil || back.Rows[0]["control"] == nil {
		t.Errorf("%v", back.Rows)
	}
	r, err := Read(path)
	if err != nil || len(r.Rows) != 2 || r.Commit != "c" {
		t.Errorf("%+v %v", r, err)
	}
	r.Merge([]Row{Worst("pause", "ms", []float64{7}), Worst("new", "ms", []float64{8})})
	if p, _ := r.Row("pause"); p.Gemel != 7 || len(r.Rows) != 3 {
		t.Errorf("merged: %+v", r.Rows)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
}

// A row is in one table, whatever other names its own begins with.
func TestRowsHaveOneTable(t *testing.T) {
	for row, want := range map[string]string{"luns4_qd8_to_lun1_qd32": "shapes", "cached_read_4k_qd1_to_base": "read", "cached_read_4k_qd32_to_base": "read",
		"mirrored_write_4k_qd32_4_luns": "shapes", "randread_4k_qd32_to_base": "read", "randread_4k_qd32_cold": "cold"} {
		var in []string
		for _, x := range tables {
			if x.holds(row) {
				in = append(in, x.name)
			}
		}
		if len(in) != 1 || in[0] != want {
			t.Errorf("%s is in the tables %v, want %s", row, in, want)
		}
	}
}

// Tables and plots come between the markers, and what people wrote around them stays.
func TestWriteDocs(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "bench.json")
	rows := []Row{
		Against("mirrored_write_4k_qd1", "IOPS", figures("default", 2, 2), figures("default", 2, 2), figures("unmirrored", 4, 4), false),
		Against("mirrored_write_4k_qd1_to_tgt", "IOPS", figures("default", 2, 2), figures("default", 2, 2), figures("tgt", 1, 1), false),
	}
	for _, name := range []string{"mirrored_write_4k_qd4", "mirrored_write_4k_qd16"} {
		rows = append(rows, Against(name, "IOPS", figures("default", 3, 3), figures("default", 3, 3), figures("unmirrored", 4, 4), false))
	}
	pause := Worst("snapshot_pause_ms", "ms", []float64{5})
	pause.Series = []load.Point{{At: 0, Done: 3, Longest: 1}, {At: 0.1, Done: 1, Longest: 5}}
	pause.Values = map[string]float64{"first_ms": 5}
	if err := Write(from, Report{Commit: "abc", Rows: append(rows, pause)}); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, "benchmarks.md")
	text := "before\n"
	for _, name := range []string{"run", "plot ratios", "plot write-latency", "plot snapshot"} {
		text += mark(name)
	}
	for _, x := range tables {
		text += mark("table " + x.name)
	}
	text += mark("kernel")
	kernel := `{"kernel":"6.1","date":"2026-11-22T10:00:00Z","rounds":3,"systems":{"lio":"LIO"},"rows":[{"name":"r","resolves":1.5,"ratios":[
		{"system":"gemel","to":"lio","median":0.5,"min":0.4,"max":0.6},{"system":"gemel","to":"lio","median":1.2,"min":1,"max":2}]}]}`
	if err := os.WriteFile(filepath.Join(dir, "bench-kernel.json"), []byte(kernel), 0o600); err != nil {
		t.Fatal(err)
	}
	text += "after\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over the first
		if err := WriteDocs(from, dir, false); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{"before\n", "after\n", "`abc`", "benchmarks/ratios.svg", "| **0.50** |", "| 2.00 |", "benchmarks/snapshot.svg", "first_ms 5.00", "| `r` | gemel | lio | **0.500** |", "| (1.20) |"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "| `mirrored_write_4k_qd1` |"); n != 1 {
		t.Errorf("the row is there %d times", n)
	}
	// A report of some cases: the others stay.
	if err := Write(from, Report{Commit: "def", Rows: []Row{Worst("snapshot_pause_ms", "ms", []float64{7}), Worst("snapshot_minute_after", "ratio", []float64{2})}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteDocs(from, dir, true); err != nil {
			t.Fatal(err)
		}
	}
	if b, err = os.ReadFile(page); err != nil {
		t.Fatal(err)
	}
	for want, times := range map[string]int{"`abc`": 1, "| `mirrored_write_4k_qd1` |": 1, "| `snapshot_pause_ms` (`def`) | 7.00": 1, "| `snapshot_minute_after` (`def`) |": 1, "first_ms 5.00": 0, "| row | worst |": 3} {
		if n := strings.Count(string(b), want); n != times {
			t.Errorf("%q is there %d times, %d expected, in\n%s", want, n, times, b)
		}
	}
	svg, err := os.ReadFile(filepath.Join(dir, "benchmarks", "write-latency.svg"))
	if err != nil || !strings.Contains(string(svg), "<svg") {
		t.Errorf("no plot: %v", err)
	}
	if err := os.WriteFile(page, []byte("no markers"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteDocs(from, dir, false); err == nil || !strings.Contains(err.Error(), "markers") {
		t.Errorf("a page without markers: %v", err)
	}
}

func mark(name string) string {
	return strings.ReplaceAll(beginMark+"\n"+endMark+"\n", "%s", name)
}
