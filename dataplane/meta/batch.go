package meta

import "slices"

// MaxBatch is how many entries a batch has at most. Hosts' own changes of reservations wait for a
// batch that is before them, so it is no larger than what pays.
const MaxBatch = 16

// Batchable reports whether an entry may be a part of a batch: it changes one LUN, nothing waits
// for it on the data path, and it ends no command.
func (e *Entry) Batchable() bool { return e.batchLUN() != "" }

// batchLUN is the LUN of an entry that may be a part of a batch, else empty.
func (e *Entry) batchLUN() string {
	switch {
	case len(e.Batch) > 0:
		return ""
	case e.CreateLUN != nil:
		if l := &e.CreateLUN.LUN; l.SourceLUN == "" && l.SourceSnapshot == "" && !e.CreateLUN.Later {
			return l.UUID
		}
	case e.Commit != nil && e.Commit.Born == 0:
		return e.Commit.UUID
	case e.MapHost != nil:
		return e.MapHost.UUID
	}
	return ""
}

// FitsBatch reports whether an entry may join those that a batch has already: the parts of a batch
// change different LUNs.
func (e *Entry) FitsBatch(batch []*Entry) bool {
	return e.Batchable() && len(batch) < MaxBatch && !slices.ContainsFunc(batch, func(x *Entry) bool { return x.batchLUN() == e.batchLUN() })
}

// applyBatch applies the parts one after the other at the same index. Each has its own outcome: a
// part that is refused changes nothing for the others.
func (s *State) applyBatch(index uint64, batch []*Entry) (out Outcome, fx Effect) {
	for i, e := range batch {
		if e == nil || !e.FitsBatch(batch[:i]) {
			return failed("invalid", "part %d cannot be in a batch with those before it", i), fx
		}
	}
	for _, e := range batch {
		o, f := s.Apply(index, e)
		out.Parts = append(out.Parts, o)
		fx.add(&f)
	}
	return out, fx
}

// add joins the effect of a part to that of its batch.
func (fx *Effect) add(part *Effect) {
	fx.UnitsChanged = fx.UnitsChanged || part.UnitsChanged
	fx.MapsChanged = fx.MapsChanged || part.MapsChanged
	fx.LUNs = append(fx.LUNs, part.LUNs...)
	for _, host := range part.Hosts {
		if !slices.Contains(fx.Hosts, host) {
			fx.Hosts = append(fx.Hosts, host)
		}
	}
	fx.Parts = append(fx.Parts, part)
}

// Each lists the effects of an entry: its own, or those of the parts of a batch.
func (fx *Effect) Each() []*Effect {
	if fx.Parts != nil {
		return fx.Parts
	}
	return []*Effect{fx}
}
