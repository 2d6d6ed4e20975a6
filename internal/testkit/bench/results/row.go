// Package results is what the benchmark has found: rows, what can be claimed of them, and how they
// are shown.
package results

import (
	"math"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
)

// Row is one line of out/bench.json. Gemel is the figure of the case itself, Peer that of what it
// is compared with.
type Row struct {
	Name  string   `json:"name"`
	Gemel float64  `json:"gemel"`
	Peer  *float64 `json:"peer"`
	// Ratio is the median of the rounds' ratios, above 1 when Gemel is better; null without a peer.
	Ratio       *float64 `json:"ratio"`
	RatioSpread *Spread  `json:"ratio_spread,omitempty"`
	// RatioRange is where the median of the rounds' ratios lies with a confidence of 95 %.
	RatioRange  *Spread            `json:"ratio_range,omitempty"`
	Unit        string             `json:"unit"`
	GemelSpread *Spread            `json:"gemel_spread,omitempty"`
	PeerSpread  *Spread            `json:"peer_spread,omitempty"`
	Gemels      *Latency           `json:"gemel_latency_us,omitempty"`
	Peers       *Latency           `json:"peer_latency_us,omitempty"`
	GemelCPU    map[string]float64 `json:"gemel_cpu_us_per_op,omitempty"` // by process
	PeerCPU     map[string]float64 `json:"peer_cpu_us_per_op,omitempty"`
	GemelName   string             `json:"gemel_name,omitempty"`
	PeerName    string             `json:"peer_name,omitempty"`
	GemelFlags  string             `json:"gemel_flags,omitempty"`
	PeerFlags   string             `json:"peer_flags,omitempty"`
	// Control is the case against itself in the same rounds (A/A).
	Control *Control `json:"control,omitempty"`
	// Resolved says whether the ratio is further from 1 than what the control shows of two equal
	// things, and its own range leaves out 1: only then is it claimed.
	Resolved *bool              `json:"resolved,omitempty"`
	Rounds   int                `json:"rounds"`
	Values   map[string]float64 `json:"values,omitempty"` // more figures, their units in their names
	Series   []load.Point       `json:"series,omitempty"`
	Note     string             `json:"note,omitempty"`
	Command  string             `json:"command,omitempty"`
}

// Spread is the least and the greatest of the rounds.
type Spread struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// Latency of all rounds together, microseconds.
type Latency struct {
	Mean    float64 `json:"mean"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p999"`
	Longest float64 `json:"longest"`
}

// Control is what the ratio of two equal things was: the median of the rounds' ratios, and the
// range within which that median is known.
type Control struct {
	Ratio float64 `json:"ratio"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

// Median of some values; 0 of none.
func Median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	switch n := len(s); {
	case n == 0:
		return 0
	case n%2 == 0:
		return (s[n/2-1] + s[n/2]) / 2
	default:
		return s[n/2]
	}
}

// SpreadOf some values, at least one.
func SpreadOf(v []float64) *Spread { return &Spread{slices.Min(v), slices.Max(v)} }

// MedianRange is where the median of what the values are drawn from lies, with a confidence of at
// least 95 %: the range between two of the values that are as many places from either end, which
// asks nothing of how the values are spread. Up to eight values that is the least and the greatest
// of them (five values: 94 %, fewer: less), and it narrows with the root of their number, where the
// least and the greatest only ever move apart. At least one value.
func MedianRange(v []float64) *Spread {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	// below is the chance that at most k+1 of n values lie on one side of the median.
	k := 0
	for below := half(n, 0); ; k++ {
		if below += half(n, k+1); below > 0.025 {
			break
		}
	}
	return &Spread{s[k], s[n-1-k]}
}

// half is the chance of k heads in n throws of a coin: n choose k, over 2^n. By logarithms: 2^n has
// no float64 for n above 1,000.
func half(n, k int) float64 {
	log := func(i int) float64 { // of i!
		v, _ := math.Lgamma(float64(i + 1))
		return v
	}
	return math.Exp(log(n) - log(k) - log(n-k) - float64(n)*math.Ln2)
}

// Figures are what a comparison has measured of one system: a value for each round, and the rest.
type Figures struct {
	Name, Flags string
	Values      []float64
	Hist        *load.Histogram
	CPU         []map[string]time.Duration // of each round, by process, per operation
}

// Add takes one round.
func (f *Figures) Add(value float64, s load.Sample) {
	if f.Hist == nil {
		f.Hist = new(load.Histogram)
	}
	f.Values = append(f.Values, value)
	f.Hist.Merge(s.Hist)
	f.CPU = append(f.CPU, s.CPU)
}

// LatencyOf a histogram; nil without operations.
func LatencyOf(h *load.Histogram) *Latency {
	if h == nil || h.Count() == 0 {
		return nil
	}
	us := func(d time.Duration) float64 { return round(float64(d)/float64(time.Microsecond), 1) }
	return &Latency{Mean: us(h.Mean()), P50: us(h.Quantile(0.5)), P99: us(h.Quantile(0.99)), P999: us(h.Quantile(0.999)), Longest: us(h.Longest())}
}

// With adds latency and CPU of a load to a row of events.
func (r Row) With(s load.Sample) Row {
	f := Figures{CPU: []map[string]time.Duration{s.CPU}}
	r.Gemels, r.GemelCPU = LatencyOf(s.Hist), f.cpu()
	return r
}

func (f *Figures) cpu() map[string]float64 {
	byName := map[string][]float64{}
	for _, round := range f.CPU {
		for name, d := range round {
			byName[name] = append(byName[name], float64(d)/float64(time.Microsecond))
		}
	}
	m := map[string]float64{}
	for name, v := range byName {
		m[name] = round(Median(v), 1)
	}
	return m
}

// Alone is the row of a system without a peer; control may be nil.
func Alone(name, unit string, f, control *Figures) Row {
	r := Row{Name: name, Unit: unit, Gemel: round(Median(f.Values), 3), GemelSpread: SpreadOf(f.Values), Gemels: LatencyOf(f.Hist), GemelCPU: f.cpu(),
		GemelName: f.Name, GemelFlags: f.Flags, Rounds: len(f.Values)}
	if control != nil {
		r.Control = ControlOf(f, control)
	}
	return r
}

// ControlOf two equal things that were measured in the same rounds.
func ControlOf(a, b *Figures) *Control {
	v := ratios(a.Values, b.Values, false)
	within := MedianRange(v)
	return &Control{round(Median(v), 4), round(within.Min, 4), round(within.Max, 4)}
}

// Against is the row of a system and a peer that were measured in the same rounds. less says that a
// smaller value is the better one.
func Against(name, unit string, f, control, peer *Figures, less bool) Row {
	r := Alone(name, unit, f, control)
	v := ratios(f.Values, peer.Values, less)
	ratio, value := round(Median(v), 4), round(Median(peer.Values), 3)
	r.Peer, r.Ratio, r.RatioSpread, r.RatioRange = &value, &ratio, SpreadOf(v), MedianRange(v)
	r.PeerSpread, r.Peers, r.PeerCPU, r.PeerName, r.PeerFlags = SpreadOf(peer.Values), LatencyOf(peer.Hist), peer.cpu(), peer.Name, peer.Flags
	if r.Control != nil {
		return r.Controlled(r.Control)
	}
	return r
}

// Controlled is the row of Against with another control than the case itself, and whether that
// control resolves the ratio.
func (r Row) Controlled(c *Control) Row {
	yes := c.Resolves(*r.Ratio) && !r.RatioRange.holds(1)
	r.Control, r.Resolved = c, &yes
	return r
}

func (s *Spread) holds(v float64) bool { return s.Min <= v && v <= s.Max }

// Resolves says whether a ratio is further from 1 than the control's range, in whichever direction.
func (c *Control) Resolves(ratio float64) bool {
	off := math.Max(math.Abs(math.Log(c.Min)), math.Abs(math.Log(c.Max)))
	return math.Abs(math.Log(ratio)) > off
}

// ratios of rounds, above 1 when the first is better.
func ratios(a, b []float64, less bool) (v []float64) {
	for i := range min(len(a), len(b)) {
		x := a[i] / b[i]
		if less {
			x = 1 / x
		}
		v = append(v, x)
	}
	return v
}

// Worst is the row of events: the worst of them, with all within the spread.
func Worst(name, unit string, v []float64) Row {
	return Row{Name: name, Unit: unit, Gemel: round(slices.Max(v), 3), GemelSpread: SpreadOf(v), Rounds: len(v)}
}

// Milliseconds of durations.
func Milliseconds(d ...time.Duration) (v []float64) {
	for _, x := range d {
		v = append(v, round(float64(x)/float64(time.Millisecond), 3))
	}
	return v
}

// round keeps a number readable.
func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}
