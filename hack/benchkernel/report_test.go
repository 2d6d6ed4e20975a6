package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSpreadIsMedianLeastAndMost(t *testing.T) {
	for _, x := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}}, {[]float64{3}, spread{3, 3, 3}}, {[]float64{5, 1, 3}, spread{3, 1, 5}}, {[]float64{4, 1, 2, 9}, spread{3, 1, 9}},
	} {
		if got := spreadOf(x.values); got != x.want {
			t.Errorf("%v: %v", x.values, got)
		}
	}
}

func TestPercentileOfDurations(t *testing.T) {
	var v []time.Duration
	if percentile(v, 99) != 0 {
		t.Error("of nothing")
	}
	for i := range 200 {
		v = append(v, time.Duration(i+1))
	}
	if p50, p99, p100 := percentile(v, 50), percentile(v, 99), percentile(v, 100); p50 != 100 || p99 != 198 || p100 != 200 {
		t.Error(p50, p99, p100)
	}
	if p := percentile(v[:1], 1); p != 1 {
		t.Error(p)
	}
}

// Each system has each place equally often, and comes after each other one equally often.
func TestEverySystemHasEveryPlace(t *testing.T) {
	for n := 1; n <= 7; n++ {
		rounds := n
		if n%2 == 1 {
			rounds = 2 * n
		}
		places, after := map[[2]int]int{}, map[[2]int]int{}
		for r := range rounds {
			o := order(n, r)
			for i, s := range o {
				places[[2]int{i, s}]++
				if i > 0 {
					after[[2]int{o[i-1], s}]++
				}
			}
		}
		if len(places) != n*n || len(after) != n*(n-1) {
			t.Fatalf("%d systems: %d places, %d neighbours", n, len(places), len(after))
		}
		for _, m := range []map[[2]int]int{places, after} {
			for k, times := range m {
				if times != rounds/n {
					t.Errorf("%d systems: %v %d times", n, k, times)
				}
			}
		}
	}
}

func samples(rates ...float64) (out []sample) {
	for _, r := range rates {
		out = append(out, sample{r, time.Millisecond, 2 * time.Millisecond})
	}
	return out
}

// Ratios are made round by round; what was skipped is in none; the control says what a ratio has to
// exceed.
func TestRatiosAreMadeByRound(t *testing.T) {
	r := newReport(options{rounds: 4, seconds: time.Second}, "6.1\n", []*system{{name: lioName, what: "x"}, {name: lioAgainName}, {name: unmirroredName}, {name: plainName}}, []skip{{lioDRBDName, "no module"}})
	r.add("randwrite", map[string][]sample{lioName: samples(100, 200, 100, 100), lioAgainName: samples(110, 180, 100, 50),
		unmirroredName: samples(105, 210, 105, 105), plainName: samples(50, 100, 50, 25)})
	x := r.Rows[0]
	// 1.1, 0.9, 1, 0.5
	if math.Abs(x.Resolves-2) > 1e-9 {
		t.Errorf("resolves %v", x.Resolves)
	}
	want := map[string]float64{lioAgainName + "_to_" + lioName: 0.95, unmirroredName + "_to_" + lioName: 1.05, plainName + "_to_" + unmirroredName: 0.4761904}
	if len(x.Ratios) != len(want) {
		t.Errorf("%+v", x.Ratios)
	}
	for _, c := range x.Ratios {
		if v, ok := want[strings.TrimPrefix(c.Name, "randwrite:")]; !ok || math.Abs(c.Median-v) > 1e-5 {
			t.Errorf("%+v", c)
		}
	}
	if f := x.Systems[lioName]; f.IOPS.Median != 100 || f.IOPS.Max != 200 || f.P50.Median != 1000 || f.P99.Median != 2000 {
		t.Errorf("%+v", f)
	}
	text := r.head() + r.table(0) + r.summary()
	for _, s := range []string{"emulator", "Only ratios count", "skipped " + lioDRBDName + ": no module", "within what the control varies", "factors above 2.00", "load average of the machine, begin and end: " + r.Load[0], "100 (100 to 200)"} {
		if !strings.Contains(text, s) {
			t.Errorf("%q is missing in:\n%s", s, text)
		}
	}
	file := filepath.Join(t.TempDir(), "out", "x.json")
	if f := strings.Fields(r.Load[0]); len(f) != 3 {
		t.Errorf("load average %q", r.Load[0])
	}
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(raw, &back); err != nil || len(back.Rows) != 1 || back.Rows[0].Ratios[0].Median != x.Ratios[0].Median || back.Kernel != "6.1" || back.Note == "" || len(back.Skipped) != 1 {
		t.Errorf("%s %v", raw, err)
	}
}

func TestResolvesIsTheLargestDeviationOfTheControl(t *testing.T) {
	for _, x := range []struct {
		ratios []float64
		want   float64
	}{
		{[]float64{1}, 1}, {[]float64{1, 1, 9}, 9}, {[]float64{0.5, 1, 1.25}, 2}, {[]float64{0.8, 1, 1.5}, 1.5}, {[]float64{0.5, 0.5, 0.5}, 2}, {[]float64{4, 4}, 4},
	} {
		if got := resolves(x.ratios); math.Abs(got-x.want) > 1e-9 {
			t.Errorf("%v: %v, not %v", x.ratios, got, x.want)
		}
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	err := (&options{rounds: 2, limit: -1}).check()
	for _, s := range []string{labEnv, "-rounds", "-time", "-limit"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("%q is missing: %v", s, err)
		}
	}
	if err := (&options{lab: "x", rounds: 3, seconds: time.Second, limit: time.Minute}).check(); err != nil {
		t.Error(err)
	}
}

// What DRBD is given names both guests by the host name that they have.
func TestResourceNamesBothGuests(t *testing.T) {
	text := resource()
	for _, s := range []string{"protocol C", "on s1 {", "on s2 {", mirrorIP[0] + ":7789", mirrorIP[1] + ":7789"} {
		if !strings.Contains(text, s) {
			t.Errorf("%q is missing: %s", s, text)
		}
	}
	if strings.Count(text, "{") != strings.Count(text, "}") {
		t.Error(text)
	}
}
