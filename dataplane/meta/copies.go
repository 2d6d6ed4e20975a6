package meta

import (
	"slices"
	"strings"
)

// A snapshot or a clone is made in three steps (R14). Both nodes make its file (Empty); its source
// is marked, at one index of the log and while its commands are held (Copying); and when each
// member has all of it, durably, it is committed (Ready). What a node has of it before that counts
// only in the life in which it was marked (docs/decisions/0069).

// Marked is a copy that begins.
type Marked struct {
	Copy
	Volume string // of the copy and of its source
	Size   int64  // bytes of the source
}

// Copy is an object that is copied from another one of the pair.
type Copy struct {
	UUID     string
	Born     uint64
	Source   string
	Snapshot bool // it is one; else it is a LUN
	Still    bool // the source is a snapshot, which never changes
	Stage    Stage
}

func stageOf(later bool) Stage {
	if later {
		return Empty
	}
	return Preparing
}

// Copy describes a copy; false if there is no such object, or it is none.
func (s *State) Copy(id string) (Copy, bool) {
	if n := s.Snapshots[id]; n != nil {
		return Copy{id, n.Born, n.Source, true, false, n.Stage}, true
	}
	switch l := s.LUNs[id]; {
	case l == nil:
	case l.SourceSnapshot != "":
		return Copy{id, l.Born, l.SourceSnapshot, false, true, l.Stage}, true
	case l.SourceLUN != "":
		return Copy{id, l.Born, l.SourceLUN, false, false, l.Stage}, true
	}
	return Copy{}, false
}

// Copies lists the copies that are Copying, by uuid.
func (s *State) Copies() (out []Copy) {
	look := func(id string, snapshot bool) {
		if c, ok := s.Copy(id); ok && c.Stage == Copying && c.Snapshot == snapshot {
			out = append(out, c)
		}
	}
	for id := range s.LUNs {
		look(id, false)
	}
	for id := range s.Snapshots {
		look(id, true)
	}
	slices.SortFunc(out, func(a, b Copy) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}

// CopyingFrom finds a copy of a LUN or snapshot that is Copying, the first one by uuid; nil if
// there is none.
func (s *State) CopyingFrom(source string) *Copy {
	first := ""
	look := func(id string) {
		if c, ok := s.Copy(id); ok && c.Stage == Copying && c.Source == source && (first == "" || id < first) {
			first = id
		}
	}
	for id := range s.LUNs {
		look(id)
	}
	for id := range s.Snapshots {
		look(id)
	}
	if first == "" {
		return nil
	}
	c, _ := s.Copy(first)
	return &c
}

// mark is the instant of a copy.
func (s *State) mark(o *Object) (out Outcome, fx Effect) {
	c, ok := s.Copy(o.UUID)
	switch {
	case !ok || c.Born != o.Born:
		return failed("not_found", "object %s, created by entry %d, does not exist", o.UUID, o.Born), fx
	case c.Stage == Copying, c.Stage == Ready:
		return Outcome{Noop: true}, fx
	case c.Stage != Empty:
		return failed("invalid", "object %s is %s, so it cannot be marked", o.UUID, c.Stage), fx
	case c.Snapshot && s.Snapshots[c.UUID].Group != "":
		return failed("invalid", "snapshot %s is a member of a group, which is cut as a whole", o.UUID), fx
	}
	x, out := s.markable(o.UUID)
	if out.Code == "" {
		s.marks(x, &fx)
	}
	return out, fx
}

// markable judges a copy that is Empty.
func (s *State) markable(id string) (_ *Marked, out Outcome) {
	c, _ := s.Copy(id)
	x := &Marked{Copy: c}
	if c.Still {
		src := s.Snapshots[c.Source]
		if src == nil || src.Stage != Ready {
			return nil, failed("not_found", "source snapshot %s does not exist", c.Source)
		}
		x.Volume, x.Size = src.Volume, src.Size
	} else {
		src := s.LUNs[c.Source]
		if src == nil || src.Stage != Ready {
			return nil, failed("not_found", "source LUN %s does not exist", c.Source)
		}
		if other := s.CopyingFrom(c.Source); other != nil {
			return nil, failed("not_ready", "LUN %s is still being copied to %s", c.Source, other.UUID)
		}
		x.Volume, x.Size = src.Volume, src.Size
	}
	switch {
	case c.Snapshot && s.Snapshots[id].Size != x.Size:
		return nil, failed("unfinished", "LUN %s has been expanded since snapshot %s was started", c.Source, id)
	case !c.Snapshot && s.LUNs[id].Size < x.Size:
		return nil, failed("unfinished", "LUN %s has been expanded since clone %s was started", c.Source, id)
	}
	return x, out
}

// marks begins with a copy that is markable.
func (s *State) marks(x *Marked, fx *Effect) {
	x.Stage = Copying
	if x.Snapshot {
		n := *s.Snapshots[x.UUID]
		n.Stage = Copying
		s.Snapshots[x.UUID], fx.Snapshots = &n, append(fx.Snapshots, x.UUID)
	} else {
		s.touch(x.UUID, fx).Stage = Copying
	}
	fx.Marked = append(fx.Marked, x)
}

// commit makes an object visible.
func (s *State) commit(o *Object) (out Outcome, fx Effect) {
	if c, ok := s.Copy(o.UUID); o.Born != 0 && (!ok || c.Born != o.Born || c.Stage != Copying && c.Stage != Ready) {
		return failed("not_found", "object %s, created by entry %d, does not exist or was not marked", o.UUID, o.Born), fx
	}
	if s.LUNs[o.UUID] != nil {
		s.touch(o.UUID, &fx).Stage = Ready
		fx.MapsChanged = true
		return out, fx
	}
	if n := s.Snapshots[o.UUID]; n != nil {
		c := *n
		c.Stage = Ready
		s.Snapshots[o.UUID] = &c
		fx.Snapshots = []string{o.UUID}
		return out, fx
	}
	return failed("not_found", "object %s does not exist", o.UUID), fx
}

// abort removes an object that is not ready. Without Born, as a release before copies were marked
// says it, it leaves alone what is being copied.
func (s *State) abort(o *Object) (out Outcome, fx Effect) {
	goes := func(stage Stage, born uint64) bool {
		return stage != Ready && (o.Born == born || o.Born == 0 && stage != Copying)
	}
	if l := s.LUNs[o.UUID]; l != nil && goes(l.Stage, l.Born) {
		delete(s.LUNs, o.UUID)
		fx.LUNs, fx.RemovedLUN, fx.RemovedVolume, fx.UnitsChanged = []string{o.UUID}, o.UUID, l.Volume, true
	}
	if n := s.Snapshots[o.UUID]; n != nil && goes(n.Stage, n.Born) {
		delete(s.Snapshots, o.UUID)
		fx.Snapshots, fx.RemovedSnapshot, fx.RemovedVolume = []string{o.UUID}, o.UUID, n.Volume
	}
	return out, fx
}
