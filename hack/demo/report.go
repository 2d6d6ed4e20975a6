package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/compare"
	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/story"
)

// Limits that make a run a success.
const (
	maxTransferMS = 100
	maxFailoverMS = 1500
	minPhase      = 1000 // acknowledged writes in each phase
	phaseWrites   = 3000 // what a phase has at least, so that there is something to see
)

var errIncomplete = errors.New("the run did not come to its end")

// phaseFill is before the story: every block is written once.
const phaseFill = "fill"

// Report is what a run found. Pauses are the longest time in milliseconds from submission to
// acknowledgement of any operation that overlaps the event, from just before it is triggered until
// the state is settled; null: not measured.
type Report struct {
	Success  bool     `json:"success"`
	Problems []string `json:"problems,omitempty"` // why not
	Mode     string   `json:"mode"`               // "CSI" or "raw I/O"
	Seconds  float64  `json:"seconds"`
	Seed     *uint64  `json:"seed,omitempty"` // of a demo-kill

	AckedWrites int64            `json:"acked_writes"`
	Phases      map[string]int64 `json:"phases"` // acknowledged writes by phase
	LostWrites  int              `json:"lost_writes"`
	IOErrors    int              `json:"io_errors"`

	SteadyMS    *float64        `json:"steady_longest_ms"` // for comparison: no event at all
	TransferMS  *float64        `json:"transfer_pause_ms"`
	FailoverMS  *float64        `json:"failover_pause_ms"`
	ResyncMS    *float64        `json:"resync_pause_ms"` // from the restart until both are in sync
	FailbackMS  *float64        `json:"failback_pause_ms"`
	ExpandMS    *float64        `json:"expand_pause_ms"`
	SnapshotMS  *float64        `json:"snapshot_pause_ms"`
	SoleCopyMS  *float64        `json:"sole_copy_pause_ms,omitempty"` // demo-kill: the only node in sync was killed, I/O waits for its return
	Resynced    int64           `json:"resynced_bytes"`               // copied, because they differed or might have
	Checked     int64           `json:"resync_checked_bytes"`         // looked at to find them
	FullResync  string          `json:"full_resync,omitempty"`        // why everything was looked at
	Identical   bool            `json:"copies_identical"`
	Images      []compare.Image `json:"images"`
	ReadThrough []readThrough   `json:"read_back"`
	Kills       []killed        `json:"kills,omitempty"`

	lost  map[string]load.Finding
	order []string // of the phases
	all   bool     // the story came to its end
}

// readThrough is one pass over all blocks.
type readThrough struct {
	Path   string `json:"path"`
	Blocks int    `json:"blocks"`
	Lost   int    `json:"lost"`
}

func newReport() *Report { return &Report{lost: map[string]load.Finding{}} }

func ms(d time.Duration) *float64 {
	v := float64(d.Microseconds()) / 1000
	return &v
}

// longer keeps the worst of several.
func longer(p **float64, d time.Duration) {
	if v := ms(d); *p == nil || **p < *v {
		*p = v
	}
}

// lose counts a block once, however often it is found to be lost.
func (p *Report) lose(findings []load.Finding) {
	for _, f := range findings {
		k := fmt.Sprint(f.Stream, "/", f.Block)
		if _, ok := p.lost[k]; !ok {
			p.lost[k] = f
		}
	}
	p.LostWrites = len(p.lost)
}

func (p *Report) finish(r *rig, took time.Duration, err error) {
	p.Seconds = float64(took.Milliseconds()) / 1000
	p.AckedWrites, p.Phases = r.meter.Acked(), r.meter.Phases()
	p.order = r.meter.Order()
	p.IOErrors = len(r.meter.Errors())
	p.all = err == nil
	for _, e := range p.verdict() {
		p.Problems = append(p.Problems, e.Error())
	}
	if err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	p.Success = len(p.Problems) == 0
}

// verdict lists what keeps a run from being a success.
func (p *Report) verdict() (problems []error) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if p.LostWrites > 0 {
		bad("%d acknowledged writes are lost", p.LostWrites)
	}
	if p.IOErrors > 0 {
		bad("%d operations failed", p.IOErrors)
	}
	if !p.all { // the rest was not reached
		return append(problems, errIncomplete)
	}
	if !p.Identical {
		bad("the copies are not identical, or were not compared")
	}
	limit := func(what string, v *float64, max float64) {
		switch {
		case v == nil:
			bad("the pause of the %s was not measured", what)
		case *v >= max:
			bad("the %s paused I/O for %.1f ms, %.0f are allowed", what, *v, max)
		}
	}
	if p.Seed == nil {
		limit("transfer", p.TransferMS, maxTransferMS)
		for name, n := range p.Phases {
			if n < minPhase {
				bad("phase %s has %d acknowledged writes, %d are needed", name, n, minPhase)
			}
		}
	}
	limit("fail-over", p.FailoverMS, maxFailoverMS)
	return problems
}

// print tells the result.
func (p *Report) print(t *story.Teller, path string) {
	t.Plain("")
	t.Title("Result")
	opt := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f ms", *v)
	}
	yes := map[bool]string{true: "yes", false: "NO"}
	rows := [][]string{{"acknowledged writes", fmt.Sprint(p.AckedWrites), ""}, {"lost", fmt.Sprint(p.LostWrites), "must be 0"},
		{"I/O errors", fmt.Sprint(p.IOErrors), "must be 0"}, {"copies identical", yes[p.Identical], fmt.Sprintf("%d images, byte by byte", len(p.Images))}}
	for _, x := range []struct {
		name string
		v    *float64
		note string
	}{{"longest write, steady", p.SteadyMS, "no event"}, {"pause: transfer", p.TransferMS, fmt.Sprintf("limit %d ms", maxTransferMS)},
		{"pause: fail-over", p.FailoverMS, fmt.Sprintf("limit %d ms", maxFailoverMS)},
		{"pause: only copy killed", p.SoleCopyMS, "until it is back"}, {"pause: resync", p.ResyncMS, ""},
		{"pause: fail-back", p.FailbackMS, ""}, {"pause: expansion", p.ExpandMS, ""}, {"pause: snapshot", p.SnapshotMS, ""}} {
		if x.v != nil || x.note != "" && p.Seed == nil && x.name != "pause: only copy killed" {
			rows = append(rows, []string{x.name, opt(x.v), x.note})
		}
	}
	note := "only what may differ"
	if p.FullResync != "" {
		note = "full: " + p.FullResync
	}
	rows = append(rows, []string{"resynced", story.Bytes(p.Resynced) + " of " + story.Bytes(p.Checked), note})
	t.Table(rows)
	if p.Seed == nil {
		line := "acknowledged writes by phase:"
		for _, n := range p.order {
			line += fmt.Sprintf(" %s %d", n, p.Phases[n])
		}
		t.Plain("    " + line)
	}
	for i, k := range slices.Sorted(maps.Keys(p.lost)) {
		if i == 10 {
			t.Problem("and %d more", len(p.lost)-i)
			break
		}
		t.Problem("lost: %v", p.lost[k])
	}
	for _, im := range p.Images {
		if !im.Identical {
			t.Problem("%s: %s", im.Name, im.Reason)
		}
	}
	if p.Seed != nil {
		t.Plain(fmt.Sprintf("    seed %d", *p.Seed))
	}
	t.Plain(fmt.Sprintf("    %.1f s; written to %s", p.Seconds, path))
	if p.Success {
		t.Title("SUCCESS")
	} else {
		t.Title("FAILED")
	}
}
