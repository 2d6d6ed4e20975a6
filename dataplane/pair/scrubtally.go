package pair

import (
	"slices"
	"time"
)

// What a scrub has done, in numbers that add up: each byte of its total has been compared, or is
// skipped for a reason, or is still to do.

// Skip is why a range was not compared.
type Skip uint8

// Reasons, in the order in which they are reported.
const (
	SkipMoved      Skip = iota + 1 // the other node owns the LUN now
	SkipDeleted                    // the LUN or snapshot is gone
	SkipUnreadable                 // the owner could not read it
	SkipApart                      // the nodes were not in sync
	SkipBusy                       // it waited for too long
	SkipRefused                    // the partner could not compare it: it owns the LUN now, or is not in sync
	SkipUnrepaired                 // it differs, and the partner could not write it
	skips
)

// String is the reason as status and metrics have it.
func (s Skip) String() string {
	return [...]string{"", "moved", "deleted", "not readable", "not in sync", "busy", "refused", "not repaired"}[s]
}

// Skips are all reasons.
func Skips() (all []Skip) {
	for s := SkipMoved; s < skips; s++ {
		all = append(all, s)
	}
	return all
}

// SkipCount is how much was skipped for one reason.
type SkipCount struct {
	Ranges uint64 `json:"ranges"`
	Bytes  uint64 `json:"bytes"`
}

// ScrubView is the progress of the present or last scrub of this node's LUNs: Total is Done,
// SkippedBytes and what is still to do.
type ScrubView struct {
	Active       bool
	Done         uint64 // bytes compared
	Total        uint64 // bytes to compare
	Mismatched   uint64 // ranges that differed
	Repaired     uint64 // of them written again at the partner
	Skipped      uint64 // ranges not compared
	SkippedBytes uint64
	Skips        [skips]SkipCount // the same by reason
	Rate         uint64           // bytes a second that were compared or skipped in the last minute
	Started      int64            // CLOCK_BOOTTIME ns
	Finished     int64            // 0 while active
	Reason       string           // why it ended early
}

// Left is how long the rest takes at the rate of the last minute; false when that cannot be said.
func (v *ScrubView) Left() (time.Duration, bool) {
	if !v.Active || v.Rate == 0 {
		return 0, false
	}
	return time.Duration(float64(v.Total-v.Done-v.SkippedBytes) / float64(v.Rate) * float64(time.Second)), true
}

// ScrubFinding is a range that differed, or one that was written again.
type ScrubFinding struct {
	N        uint64 // counts the findings of a scrub from 1 on
	LUN      LUNID
	Off, Len int64
	Repaired bool
	At       int64 // CLOCK_BOOTTIME ns
}

// maxFindings of a scrub that are kept, the last ones: the numbers say how many there were.
const maxFindings = 32

// A rate is that of rateSpan, from marks that are rateStep apart.
const (
	rateSpan = int64(time.Minute)
	rateStep = int64(5 * time.Second)
)

// scrubMark is what had been compared or skipped at a moment.
type scrubMark struct {
	at   int64
	seen uint64
}

func (s *scrubState) seen() uint64 { return s.view.Done + s.view.SkippedBytes }

// mark notes the progress now and then, and forgets what is too old to tell the rate.
func (s *scrubState) mark(now int64) {
	if k := len(s.marks); k > 0 && now-s.marks[k-1].at < rateStep {
		return
	}
	s.marks = append(s.marks, scrubMark{now, s.seen()})
	old := 0
	for old < len(s.marks)-1 && now-s.marks[old].at > rateSpan {
		old++
	}
	s.marks = slices.Delete(s.marks, 0, old)
}

// look is the progress with its rate.
func (s *scrubState) look(now int64) ScrubView {
	v := s.view
	if v.Active && len(s.marks) > 0 {
		from := s.marks[0]
		for _, x := range s.marks { // the newest that is a minute old, if there is one: ranges may have stopped to end since
			if now-x.at >= rateSpan {
				from = x
			}
		}
		if took := time.Duration(now - from.at); took > 0 {
			v.Rate = uint64(float64(s.seen()-from.seen) / took.Seconds())
		}
	}
	return v
}

func (s *scrubState) skip(why Skip, ranges, bytes uint64) {
	v := &s.view
	v.Skipped, v.SkippedBytes = v.Skipped+ranges, v.SkippedBytes+bytes
	v.Skips[why].Ranges += ranges
	v.Skips[why].Bytes += bytes
}

// skipObject skips the rest of the object that is at turn.
func (s *scrubState) skipObject(why Skip) {
	if rest := s.objects[s.at].Size - s.off; rest > 0 {
		s.skip(why, uint64((rest+scrubChunk-1)/scrubChunk), uint64(rest))
		s.off += rest
	}
}

// skipRest skips what is under way and what has not begun.
func (s *scrubState) skipRest(why Skip) {
	for ; s.at < len(s.objects); s.at, s.off = s.at+1, 0 {
		s.skipObject(why)
	}
	if s.inflight > 0 {
		s.skip(why, uint64(s.inflight), s.view.Total-s.seen())
		s.inflight = 0 // they end without being counted again
	}
}

// skipOf is why a range was not compared, as far as this node sees.
func (m *Machine) skipOf(o *Op) Skip {
	u := m.units[o.LUN]
	switch {
	case o.skip != 0:
		return o.skip
	case m.phase != Paired || !m.link.up || !m.link.agreed || m.leave.why != "":
		return SkipApart
	case o.unit != &m.snaps && u == nil:
		return SkipDeleted
	case o.unit != &m.snaps && u.owner != m.cfg.Self:
		return SkipMoved
	}
	return SkipBusy
}

// scrubFound keeps a finding for people.
func (m *Machine) scrubFound(now int64, o *Op, repaired bool) {
	s := &m.scrub
	s.findings++
	s.found = append(s.found, ScrubFinding{N: s.findings, LUN: o.LUN, Off: o.Cmd.Off, Len: o.Cmd.Len, Repaired: repaired, At: now})
	if len(s.found) > maxFindings {
		s.found = slices.Delete(s.found, 0, len(s.found)-maxFindings)
	}
}

// ScrubFindings are the last findings of the present or last scrub, the oldest first.
func (m *Machine) ScrubFindings() []ScrubFinding { return slices.Clone(m.scrub.found) }
