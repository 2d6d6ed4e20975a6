package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/target/pair"
)

// Total sums the results of many histories.
type Total struct {
	Histories, Events, Operations int
	Faults                        map[string]int
	Stats                         pair.Stats
	Failed                        []Result
}

// Add counts a result in.
func (t *Total) Add(r Result) {
	if t.Faults == nil {
		t.Faults = map[string]int{}
	}
	t.Histories++
	t.Events += r.Events
	t.Operations += r.Operations
	for k, n := range r.Faults {
		t.Faults[k] += n
	}
	addStats(&t.Stats, &r.Stats)
	if r.Err != nil {
		t.Failed = append(t.Failed, r)
	}
}

// Branches are the rare ways through the protocol, with how often they were taken. One that no history takes is not
// tested, whatever else passes.
func (t *Total) Branches() map[string]uint64 {
	s := &t.Stats
	return map[string]uint64{"exclude": s.Excludes, "readmit": s.Readmits, "handshake": s.Relinks, "forward": s.Forwarded,
		"mirror": s.Mirrored, "repair": s.Repaired, "aged": s.Aged, "path switch": s.PathSwitches, "held": s.Held,
		"transfer": s.Transfers, "lease lapse": s.LeaseLapses, "stale message": s.StaleMessages, "no space": s.NoSpace,
		"intents": s.Intents, "cold writes": s.ColdWrites, "checkpoint": s.Checkpoints, "cleared": s.Cleared,
		"partial resync": s.PartialResyncs, "full resync": s.FullResyncs, "resync resumes": s.Resumes, "lost": s.Lost,
		"resync sends": s.ResyncBytes, "resync compares": s.ResyncCompared}
}

// Uncovered names the branches that were never taken, sorted.
func (t *Total) Uncovered() []string {
	out := []string{}
	for name, n := range t.Branches() {
		if n == 0 {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func addStats(to, s *pair.Stats) {
	to.Excludes += s.Excludes
	to.Readmits += s.Readmits
	to.Relinks += s.Relinks
	to.Fences += s.Fences
	to.Forwarded += s.Forwarded
	to.Mirrored += s.Mirrored
	to.Repaired += s.Repaired
	to.Aged += s.Aged
	to.PathSwitches += s.PathSwitches
	to.Held += s.Held
	to.Transfers += s.Transfers
	to.NoSpace += s.NoSpace
	to.LeaseLapses += s.LeaseLapses
	to.StaleMessages += s.StaleMessages
	to.ResyncBytes += s.ResyncBytes
	to.ResyncCompared += s.ResyncCompared
	to.Intents += s.Intents
	to.ColdWrites += s.ColdWrites
	to.Checkpoints += s.Checkpoints
	to.Cleared += s.Cleared
	to.PartialResyncs += s.PartialResyncs
	to.FullResyncs += s.FullResyncs
	to.Resumes += s.Resumes
	to.Lost += s.Lost
}
