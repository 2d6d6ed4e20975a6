package meta

import (
	"testing"
)

func later(e Entry) Entry {
	if e.CreateLUN != nil {
		e.CreateLUN.Later = true
	} else {
		e.CreateSnapshot.Later = true
	}
	return e
}

func cloneOf(n int, size int64, lun, snapshot string) Entry {
	return Entry{CreateLUN: &CreateLUN{LUN: LUN{UUID: id(n), Name: "clone" + id(n), Size: size << 20, SourceLUN: lun, SourceSnapshot: snapshot}, Later: true}}
}

func (s *table) born(n int) uint64 {
	s.t.Helper()
	c, ok := s.Copy(id(n))
	if !ok {
		s.t.Fatalf("object %d is no copy", n)
	}
	return c.Born
}

func (s *table) stage(n int, want Stage) {
	s.t.Helper()
	if c, _ := s.Copy(id(n)); c.Stage != want {
		s.t.Fatalf("object %d is %q, not %q", n, c.Stage, want)
	}
}

func object(n int, born uint64) *Object { return &Object{UUID: id(n), Born: born} }

// A copy is empty, then marked, then ready, and one entry has the runtime begin with it.
func TestCopyInThreeSteps(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	if _, fx := s.apply(later(snap(2, 1))); fx.CreatedSnapshot == nil || fx.CreatedSnapshot.Stage != Empty || len(fx.Marked) != 0 {
		t.Fatalf("effects of the preparation: %+v", fx)
	}
	s.stage(2, Empty)
	born := s.born(2)
	s.refused(ErrNotFound, Entry{Commit: object(2, born)}) // nothing was copied
	_, fx := s.apply(Entry{Mark: object(2, born)})
	if m := fx.Marked[0]; m == nil || m.UUID != id(2) || m.Source != id(1) || m.Size != 4<<20 || m.Still || !m.Snapshot || m.Born != born {
		t.Fatalf("effects of the mark: %+v", fx)
	}
	s.stage(2, Copying)
	if out, fx := s.apply(Entry{Mark: object(2, born)}); !out.Noop || len(fx.Marked) != 0 {
		t.Error("a mark that is repeated begins again")
	}
	if out, _ := s.apply(later(snap(2, 1))); !out.Noop {
		t.Errorf("the request repeated while it is copied: %+v", out)
	}
	if list := s.Copies(); len(list) != 1 || list[0].UUID != id(2) {
		t.Errorf("copies: %+v", list)
	}
	s.must(Entry{Commit: object(2, born)})
	s.stage(2, Ready)
	if len(s.Copies()) != 0 {
		t.Error("a copy that is ready is not complete")
	}
	s.must(Entry{Commit: object(2, born)}) // repeated
}

// A source has one copy at a time, and stays as long as it has one. A snapshot that is a source may
// have several.
func TestSourceOfACopy(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	s.must(later(snap(2, 1)))
	s.must(cloneOf(3, 8, id(1), ""))
	s.must(Entry{Mark: object(2, s.born(2))})
	s.refused(ErrNotReady, Entry{Mark: object(3, s.born(3))})
	s.refused(ErrNotReady, Entry{DeleteLUN: &Object{UUID: id(1)}})
	s.must(Entry{Commit: object(2, s.born(2))})
	s.must(Entry{Mark: object(3, s.born(3))})
	s.must(Entry{Commit: object(3, s.born(3))})

	s.must(cloneOf(4, 4, "", id(2)))
	s.must(cloneOf(5, 4, "", id(2)))
	for _, n := range []int{4, 5} {
		if _, fx := s.apply(Entry{Mark: object(n, s.born(n))}); len(fx.Marked) == 0 || !fx.Marked[0].Still || fx.Marked[0].Size != 4<<20 {
			t.Errorf("clone %d: %+v", n, fx)
		}
	}
	s.refused(ErrNotReady, Entry{DeleteSnapshot: &Object{UUID: id(2)}})
	s.must(Entry{Abort: object(4, s.born(4))})
	s.must(Entry{Commit: object(5, s.born(5))})
	s.must(Entry{DeleteSnapshot: &Object{UUID: id(2)}})
	s.must(Entry{DeleteLUN: &Object{UUID: id(1)}})
}

// An entry about an object that had the uuid before changes nothing.
func TestEntriesAboutAnEarlierCopy(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	s.must(later(snap(2, 1)))
	old := s.born(2)
	s.must(Entry{Mark: object(2, old)})
	s.must(Entry{Abort: &Object{UUID: id(2)}}) // an older release's: it leaves a copy alone
	s.stage(2, Copying)
	s.must(Entry{Abort: object(2, old)})
	s.must(later(snap(2, 1)))
	s.must(Entry{Mark: object(2, s.born(2))})
	s.must(Entry{Abort: object(2, old)})
	s.stage(2, Copying)
	s.refused(ErrNotFound, Entry{Commit: object(2, old)})
	s.refused(ErrNotFound, Entry{Mark: object(2, old)})
	s.must(Entry{Commit: object(2, s.born(2))})
	s.must(Entry{Abort: object(2, s.born(2))})
	s.stage(2, Ready)
}

// A source that has grown between the steps, is gone, or is itself not ready.
func TestMarkRefuses(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	s.must(later(snap(2, 1)))
	s.must(cloneOf(3, 4, id(1), ""))
	s.must(Entry{Expand: &Expand{UUID: id(1), Size: 8 << 20}})
	s.refused(ErrUnfinished, Entry{Mark: object(2, s.born(2))})
	s.refused(ErrUnfinished, Entry{Mark: object(3, s.born(3))})
	s.refused(ErrUnfinished, later(snap(2, 1))) // so that the request begins again
	s.must(Entry{Abort: &Object{UUID: id(2)}})
	s.must(later(snap(2, 1)))
	s.must(Entry{Mark: object(2, s.born(2))})
	s.must(Entry{Commit: object(2, s.born(2))})
	s.must(Entry{DeleteLUN: &Object{UUID: id(1)}})
	s.refused(ErrNotFound, Entry{Mark: object(3, s.born(3))})
	s.refused(ErrNotFound, Entry{Mark: object(9, 1)})
	s.ready(7, 4)
	s.refused(ErrNotFound, Entry{Mark: object(7, s.LUNs[id(7)].Born)}) // no copy at all
}
