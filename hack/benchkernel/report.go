package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// note is printed and written with every result.
const note = "Guests of an emulator (QEMU TCG, no hardware virtualization): everything in them is 10 to 50 times slower than on a machine, a kernel and a program " +
	"not equally so, encryption most of all, and the client outside not at all. Only ratios count, and only of systems of this run; " +
	"they show how much work each way of a command takes, not what disks, networks or caches of real machines make of it. " +
	"LUNs are in the guests' memory, and the guests' disks in the machine's. The control is a second session on LIO's LUN: it has its own luck with the processor that LIO binds a session to. All systems are asked by the same client over one iSCSI session each, Gemel's mirrored ones over a second that is idle. " +
	"DRBD has its defaults, so its disk flushes at activity log updates; its link and that of gemel_plain_link are in the clear, the latter through address translation of both kernels."

// spread of the values of a system, or of ratios, over the rounds.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	if n == 0 {
		return spread{}
	}
	return spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1]}
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Min, s.Max) }

// figures of one system in one row.
type figures struct {
	IOPS spread `json:"iops"`
	P50  spread `json:"p50_us"`
	P99  spread `json:"p99_us"`
}

// comparison is the rate of one system over that of another, round by round.
type comparison struct {
	Name   string `json:"name"`
	System string `json:"system"`
	To     string `json:"to"`
	spread
}

type row struct {
	Name    string             `json:"name"`
	Systems map[string]figures `json:"systems"`
	Ratios  []comparison       `json:"ratios"`
	// Resolves is the factor by which the control, a system compared with itself, is away from 1 in
	// its worst round. A ratio whose median is nearer to 1 than that is none. 0: there was no
	// control.
	Resolves float64 `json:"resolves"`
}

type report struct {
	Note    string            `json:"note"`
	Kernel  string            `json:"kernel"`
	Date    time.Time         `json:"date"`
	Rounds  int               `json:"rounds"`
	Turn    float64           `json:"turn_seconds"`
	Seconds float64           `json:"seconds"`
	Load    [2]string         `json:"load_average"` // of the machine, as the run began and ended; the run itself makes about 2 to 3
	Systems map[string]string `json:"systems"`      // what each is
	Skipped []skip            `json:"skipped"`
	Rows    []row             `json:"rows"`
	names   []string
}

func newReport(o options, kernel string, systems []*system, skipped []skip) *report {
	r := &report{Note: note, Kernel: strings.TrimSpace(kernel), Date: time.Now().UTC(), Rounds: o.rounds, Turn: o.seconds.Seconds(), Systems: map[string]string{}, Skipped: append([]skip{}, skipped...), Load: [2]string{loadAverage(), ""}}
	for _, s := range systems {
		r.Systems[s.name], r.names = s.what, append(r.names, s.name)
	}
	return r
}

// loadAverage of the machine: of 1, 5 and 15 minutes.
func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(raw))
	if err != nil || len(f) < 3 {
		return fmt.Sprintf("unknown: %v", err)
	}
	return strings.Join(f[:3], " ")
}

// compared systems: the first over the second. The first line is the control.
var compared = [][2]string{
	{lioAgainName, lioName},
	{unmirroredName, lioName},
	{plainName, lioDRBDName},
	{mtlsName, lioDRBDName},
	{lioDRBDName, lioName},
	{plainName, unmirroredName},
	{mtlsName, plainName},
}

// add sums a row up.
func (r *report) add(name string, samples map[string][]sample) {
	x := row{Name: name, Systems: map[string]figures{}, Ratios: []comparison{}}
	for system, list := range samples {
		var iops, p50, p99 []float64
		for _, s := range list {
			iops, p50, p99 = append(iops, s.iops), append(p50, float64(s.p50.Nanoseconds())/1e3), append(p99, float64(s.p99.Nanoseconds())/1e3)
		}
		x.Systems[system] = figures{spreadOf(iops), spreadOf(p50), spreadOf(p99)}
	}
	for i, c := range compared {
		a, b := samples[c[0]], samples[c[1]]
		if len(a) == 0 || len(a) != len(b) {
			continue // one of them was skipped
		}
		var ratios []float64
		for k := range a {
			ratios = append(ratios, a[k].iops/b[k].iops)
		}
		y := comparison{name + ":" + c[0] + "_to_" + c[1], c[0], c[1], spreadOf(ratios)}
		if i == 0 {
			x.Resolves = resolves(ratios)
		}
		x.Ratios = append(x.Ratios, y)
	}
	r.Rows = append(r.Rows, x)
}

// resolves is the factor of row.Resolves. Its quartiles would say too much: in a trial on a busy
// machine, reads of two pairs, which take the same way, differed by more than they did.
func resolves(ratios []float64) float64 {
	s := spreadOf(ratios)
	return max(s.Max, 1/s.Min)
}

func (r *report) head() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Debian's kernel %s; %d rounds of turns of %v s\n%s\n", r.Kernel, r.Rounds, r.Turn, note)
	for _, n := range r.names {
		fmt.Fprintf(&b, "%-18s %s\n", n, r.Systems[n])
	}
	return b.String()
}

// table of one row.
func (r *report) table(i int) string {
	var b strings.Builder
	x := &r.Rows[i]
	fmt.Fprintf(&b, "\n%-18s %26s %26s %26s\n", x.Name, "IOPS (of all rounds)", "p50 us", "p99 us")
	for _, n := range r.names {
		f := x.Systems[n]
		fmt.Fprintf(&b, "%-18s", n)
		for _, s := range []spread{f.IOPS, f.P50, f.P99} {
			fmt.Fprintf(&b, " %26s", fmt.Sprintf("%.0f (%.0f to %.0f)", s.Median, s.Min, s.Max))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// summary has the ratios, and which of them the run can tell from 1.
func (r *report) summary() string {
	var b strings.Builder
	b.WriteString("\nratio of rates, median (of all rounds)\n")
	for i := range r.Rows {
		x := &r.Rows[i]
		for _, c := range x.Ratios {
			remark := ""
			if distance := max(c.Median, 1/c.Median); c.System == compared[0][0] {
				remark = fmt.Sprintf("  the control: this row tells factors above %.2f from 1", x.Resolves)
			} else if x.Resolves > 0 && distance <= x.Resolves {
				remark = "  within what the control varies"
			}
			fmt.Fprintf(&b, "%-20s %-18s to %-18s %s%s\n", x.Name, c.System, c.To, c.spread, remark)
		}
	}
	fmt.Fprintf(&b, "load average of the machine, begin and end: %s; %s\n", r.Load[0], r.Load[1])
	for _, s := range r.Skipped {
		fmt.Fprintf(&b, "skipped %s: %s\n", s.Name, s.Reason)
	}
	return b.String()
}

func (r *report) write(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o755)
	}
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}
