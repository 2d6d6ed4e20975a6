package meta

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// canonical reports whether an identifier is a uuid in canonical form: files and designators are
// made from it, so an entry with another one must be refused here, on both nodes alike, and not
// fail where it is carried out.
func canonical(id string) bool {
	u, err := uuid.Parse(id)
	return err == nil && u.String() == id
}

func badNode(name string) bool { return name != "a" && name != "b" }

func (s *State) createLUN(l *LUN, later bool) (out Outcome, fx Effect) {
	switch {
	case !canonical(l.UUID):
		return failed("invalid", "LUN uuid %q is not in canonical form", l.UUID), fx
	case l.Size <= 0 || l.Size > MaxSize || l.Size%SizeStep != 0:
		return failed("invalid", "LUN size %d is not a multiple of %d up to %d", l.Size, SizeStep, int64(MaxSize)), fx
	case l.Preferred != "" && badNode(l.Preferred) || l.Owner != "" && badNode(l.Owner):
		return failed("invalid", "LUN %s has an unknown node: %q, %q", l.UUID, l.Preferred, l.Owner), fx
	case l.Pin != "" && badNode(l.Pin):
		return failed("invalid", "LUN %s cannot be pinned to node %q", l.UUID, l.Pin), fx
	case l.Tier != "" && badTier(l.Tier):
		return failed("invalid", "LUN %s cannot be pinned to tier %q", l.UUID, l.Tier), fx
	case l.Pin != "" && l.Preferred != "" && l.Preferred != l.Pin:
		return failed("invalid", "LUN %s cannot prefer node %s: it is pinned to node %s", l.UUID, l.Preferred, l.Pin), fx
	}
	if old := s.LUNs[l.UUID]; old != nil {
		if old.Name != l.Name || old.Size != l.Size || old.SourceSnapshot != l.SourceSnapshot || old.SourceLUN != l.SourceLUN {
			return failed("exists", "LUN %s already exists with another name, size or source", l.UUID), fx
		}
		if copied := l.SourceSnapshot != "" || l.SourceLUN != ""; old.Volume != l.Volume && (!copied || l.Volume != "") {
			return failed("exists", "LUN %s already exists in backing volume %q, not %q", l.UUID, VolumeName(old.Volume), VolumeName(l.Volume)), fx
		}
		if old.Stage == Preparing && old.SourceLUN != "" || old.Stage == Empty || old.Stage == Preparing && later {
			return failed("unfinished", "a copy with uuid %s was started and not finished", l.UUID), fx
		}
		return Outcome{Noop: old.Stage != Preparing}, s.prepareAgain(old)
	}
	switch {
	case s.LUNByName(l.Name) != nil:
		return failed("exists", "a LUN named %q already exists with another uuid", l.Name), fx
	case len(s.LUNs) >= MaxLUNs:
		return failed("exhausted", "the pair has reached its limit of %d LUNs", MaxLUNs), fx
	case l.SourceSnapshot != "":
		src := s.Snapshots[l.SourceSnapshot]
		if src == nil || src.Stage != Ready {
			return failed("not_found", "source snapshot %s does not exist", l.SourceSnapshot), fx
		}
		if l.Size < src.Size {
			return failed("invalid", "size_bytes %d is less than the source snapshot's %d", l.Size, src.Size), fx
		}
		if out := l.besides(src.Volume); out.Code != "" {
			return out, fx
		}
	case l.SourceLUN != "":
		src := s.LUNs[l.SourceLUN]
		if src == nil || src.Stage != Ready {
			return failed("not_found", "source LUN %s does not exist", l.SourceLUN), fx
		}
		if l.Size < src.Size {
			return failed("invalid", "size_bytes %d is less than the source LUN's %d", l.Size, src.Size), fx
		}
		if out := l.besides(src.Volume); out.Code != "" {
			return out, fx
		}
	}
	n := l.clone()
	if n.SourceSnapshot != "" {
		n.Volume = s.Snapshots[n.SourceSnapshot].Volume
	} else if n.SourceLUN != "" {
		n.Volume = s.LUNs[n.SourceLUN].Volume
	}
	n.Stage, n.Seq, n.Maps, n.Born = stageOf(later), 1, map[string]Map{}, s.Index
	if n.Preferred = cmp.Or(n.Preferred, n.Pin); n.Preferred == "" {
		n.Preferred = "a"
		if s.Owned("b") < s.Owned("a") {
			n.Preferred = "b"
		}
	}
	if n.Owner == "" {
		n.Owner = n.Preferred
	}
	s.LUNs[n.UUID] = n
	fx.LUNs, fx.CreatedLUN, fx.UnitsChanged = []string{n.UUID}, n, true
	return out, fx
}

// besides puts a copy into the backing volume of its source, with which it shares extents. Another
// one was asked for in vain.
func (l *LUN) besides(source string) Outcome {
	if l.Volume != "" && l.Volume != source {
		return failed("invalid", "volume: a copy shares extents with its source and must be in the same backing volume, %q, not %q: leave the field empty",
			VolumeName(source), l.Volume)
	}
	return Outcome{}
}

// prepareAgain repeats the preparation of a LUN whose proposer did not live to commit it.
func (s *State) prepareAgain(l *LUN) (fx Effect) {
	if l.Stage == Preparing {
		fx.CreatedLUN = l
	}
	return fx
}

func (s *State) createSnapshot(n *Snapshot, later bool) (out Outcome, fx Effect) {
	if !canonical(n.UUID) {
		return failed("invalid", "snapshot uuid %q is not in canonical form", n.UUID), fx
	}
	if n.Group != "" {
		if out := s.attempt(n.Group, n.Attempt); out.Code != "" {
			return out, fx
		}
	}
	if old := s.Snapshots[n.UUID]; old != nil {
		if old.Name != n.Name || old.Source != n.Source || old.Group != n.Group || old.Attempt != n.Attempt {
			return failed("exists", "snapshot %s already exists with another name, source or group", n.UUID), fx
		}
		if old.Stage == Ready || old.Stage == Copying || n.Group != "" {
			return Outcome{Noop: true}, fx
		}
		return failed("unfinished", "snapshot %s was started and not finished", n.UUID), fx
	}
	if out := s.member(n); out.Code != "" {
		return out, fx
	}
	src := s.LUNs[n.Source]
	switch {
	case s.SnapshotByName(n.Name) != nil:
		return failed("exists", "a snapshot named %q already exists with another uuid", n.Name), fx
	case src == nil || src.Stage != Ready:
		return failed("not_found", "source LUN %s does not exist", n.Source), fx
	}
	c := *n
	c.Size, c.Volume, c.Stage, c.Born = src.Size, src.Volume, stageOf(later), s.Index
	s.Snapshots[c.UUID] = &c
	fx.Snapshots, fx.CreatedSnapshot = []string{c.UUID}, &c
	return out, fx
}

func (s *State) deleteLUN(id string) (out Outcome, fx Effect) {
	l := s.LUNs[id]
	if l == nil {
		return Outcome{Noop: true}, fx
	}
	if len(l.Maps) > 0 {
		return failed("in_use", "LUN %s is mapped to %d hosts: unmap them first", id, len(l.Maps)), fx
	}
	if c := s.CopyingFrom(id); c != nil {
		return failed("not_ready", "LUN %s is still being copied to %s: wait until the copy is complete, or delete the copy", id, c.UUID), fx
	}
	delete(s.LUNs, id)
	fx.LUNs, fx.RemovedLUN, fx.RemovedVolume, fx.UnitsChanged, fx.MapsChanged = []string{id}, id, l.Volume, true, true
	return out, fx
}

func (s *State) deleteSnapshot(id string) (out Outcome, fx Effect) {
	n := s.Snapshots[id]
	if n == nil {
		return Outcome{Noop: true}, fx
	}
	if c := s.CopyingFrom(id); c != nil {
		return failed("not_ready", "snapshot %s is still being copied to %s: wait until the copy is complete, or delete the copy", id, c.UUID), fx
	}
	delete(s.Snapshots, id)
	fx.Snapshots, fx.RemovedSnapshot, fx.RemovedVolume = []string{id}, id, n.Volume
	return out, fx
}

// grow has both nodes make room before any host sees the new size: a node that could not would hold
// a smaller file than the state says (R14).
func (s *State) grow(e *Expand) (out Outcome, fx Effect) {
	l := s.LUNs[e.UUID]
	if out, done := refuseSize(l, e); done {
		return out, fx
	}
	fx.Grown = l.clone()
	fx.Grown.Size = e.Size
	return out, fx
}

// refuseSize judges a new size; done tells that there is nothing to do.
func refuseSize(l *LUN, e *Expand) (out Outcome, done bool) {
	switch {
	case l == nil:
		return failed("not_found", "LUN %s does not exist", e.UUID), true
	case l.Stage != Ready:
		return failed("not_ready", "LUN %s is still being created", e.UUID), true
	case e.Size > MaxSize || e.Size > 0 && e.Size%SizeStep != 0:
		return failed("invalid", "LUN size %d is not a multiple of %d up to %d", e.Size, SizeStep, int64(MaxSize)), true
	case e.Size <= l.Size:
		return Outcome{Noop: true}, true
	}
	return out, false
}

func (s *State) expand(e *Expand) (out Outcome, fx Effect) {
	if out, done := refuseSize(s.LUNs[e.UUID], e); done {
		return out, fx
	}
	n := s.touch(e.UUID, &fx)
	n.Size = e.Size
	fx.Resized, fx.UnitsChanged = n, true
	return out, fx
}

func (s *State) mapHost(e *MapHost) (out Outcome, fx Effect) {
	l := s.LUNs[e.UUID]
	switch {
	case l == nil:
		return failed("not_found", "LUN %s does not exist", e.UUID), fx
	case l.Stage != Ready:
		return failed("not_ready", "LUN %s is still being created", e.UUID), fx
	case !e.Near.valid():
		return failed("invalid", "near: host %s cannot be near node %q by %q", e.Host, e.Near.Node, e.Near.By), fx
	}
	for _, other := range slices.Sorted(maps.Keys(l.Maps)) {
		if e.Exclusive && other != e.Host {
			return failed("in_use", "LUN %s is mapped to %s, but the request asks for exclusive use", e.UUID, other), fx
		}
	}
	h := &Host{IQN: e.Host}
	if old := s.Hosts[e.Host]; old != nil {
		*h = *old
	}
	h.CHAP, h.Profile = e.CHAP, e.Profile
	if m, ok := l.Maps[e.Host]; ok {
		if m.ReadOnly != e.ReadOnly {
			return failed("exists", "LUN %s is already mapped to %s with another read_only value", e.UUID, e.Host), fx
		}
		if s.Hosts[e.Host], fx.Hosts = h, []string{e.Host}; m.Near != e.Near && e.Near != (Near{}) {
			m.Near = e.Near // the worker has other labels; the home is set at attach only
			s.touch(e.UUID, &fx).Maps[e.Host] = m
		}
		return Outcome{Noop: true, Map: &m}, fx
	}
	number, ok := s.freeLUN(h)
	if !ok {
		return failed("exhausted", "host %s uses all %d LUN numbers already", e.Host, MaxLUN+1), fx
	}
	h.NextLUN = (number + 1) % (MaxLUN + 1)
	s.Generation++
	m := Map{LUN: number, Generation: s.Generation, ReadOnly: e.ReadOnly, Near: e.Near}
	n := s.touch(e.UUID, &fx)
	if s.followsConsumer(n, e) {
		n.Preferred, fx.PreferredLUNs = e.Near.Node, []string{e.UUID}
	}
	if n.Maps == nil {
		n.Maps = map[string]Map{}
	}
	n.Maps[e.Host] = m
	s.Hosts[e.Host], fx.Hosts = h, []string{e.Host}
	fx.MapsChanged = true
	return Outcome{Map: &m}, fx
}

func (s *State) unmapHost(e *UnmapHost) (out Outcome, fx Effect) {
	l := s.LUNs[e.UUID]
	if l == nil {
		return Outcome{Noop: true}, fx
	}
	hosts := []string{e.Host}
	if e.Host == "" {
		hosts = slices.Sorted(maps.Keys(l.Maps))
	}
	n := s.touch(e.UUID, &fx)
	fx.FenceNumbers = map[string]uint16{}
	for _, h := range hosts {
		if m, ok := n.Maps[h]; ok {
			fx.FenceNumbers[h] = m.LUN
		}
		delete(n.Maps, h)
		if n.PR != nil {
			next, _, uas, aborts := scsi.ApplyPROut(n.PR, scsi.NexusID{Initiator: h}, &scsi.PROut{Action: scsi.PRUnmap})
			n.PR = next
			fx.UAs, fx.Aborts, fx.PRLUN = append(fx.UAs, uas...), append(fx.Aborts, aborts...), e.UUID
		}
		fx.Fence = append(fx.Fence, h) // asked again: the fence is made sure of again
	}
	fx.FenceLUN, fx.MapsChanged = e.UUID, true
	return out, fx
}

func (s *State) applyPR(e *PR) (out Outcome, fx Effect) {
	l := s.LUNs[e.UUID]
	if l == nil {
		return failed("not_found", "LUN %s does not exist", e.UUID), fx
	}
	cur := l.PR
	if cur == nil {
		cur = &scsi.PRState{}
	}
	next, res, uas, aborts := scsi.ApplyPROut(cur, e.Nexus, &e.Req)
	if next != cur {
		s.touch(e.UUID, &fx).PR = next
	}
	fx.PRLUN, fx.UAs, fx.Aborts, fx.By = e.UUID, uas, aborts, e.Nexus
	return Outcome{SCSI: &res}, fx
}

func (s *State) markLost(e *MarkLost) (out Outcome, fx Effect) {
	for _, id := range e.UUIDs {
		l := s.LUNs[id]
		if l == nil || len(l.Maps) == 0 {
			continue
		}
		n := s.touch(id, &fx)
		for h, m := range n.Maps {
			m.Lost = true
			n.Maps[h] = m
		}
	}
	return out, fx
}

// applyReset changes nothing here: what a reset does to reservations and mode pages is proposed by
// the task manager.
func (s *State) applyReset(e *Reset) (out Outcome, fx Effect) {
	fx.Reset = e
	return out, fx
}
