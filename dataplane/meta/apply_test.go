package meta

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }

// table applies entries one after the other.
type table struct {
	*State
	t *testing.T
}

func newTable(t *testing.T) *table { return &table{NewState(), t} }

func (s *table) apply(e Entry) (Outcome, Effect) {
	// As it travels: encoded and decoded.
	d, err := DecodeEntry(e.Encode())
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Apply(s.Index+1, d)
}

func (s *table) must(e Entry) (Outcome, Effect) {
	s.t.Helper()
	out, fx := s.apply(e)
	if out.Code != "" {
		s.t.Fatalf("%s: %s", out.Code, out.Error)
	}
	return out, fx
}

func (s *table) refused(want error, e Entry) {
	s.t.Helper()
	before, _ := json.Marshal(s.LUNs)
	out, fx := s.apply(e)
	if err := out.Err(); !errors.Is(err, want) {
		s.t.Fatalf("got %v, want %v", err, want)
	}
	after, _ := json.Marshal(s.LUNs)
	if string(before) != string(after) || !reflect.DeepEqual(fx, Effect{}) {
		s.t.Fatalf("a refused entry has effects: %+v", fx)
	}
}

func lun(n int, size int64) Entry {
	return Entry{CreateLUN: &CreateLUN{LUN: LUN{UUID: id(n), Name: fmt.Sprint("lun", n), Size: size << 20, Created: time.Unix(1, 0).UTC()}}}
}

func (s *table) ready(n int, size int64) {
	s.t.Helper()
	s.must(lun(n, size))
	s.must(Entry{Commit: &Object{UUID: id(n)}})
}

func snap(n, src int) Entry {
	return Entry{CreateSnapshot: &CreateSnapshot{Snapshot: Snapshot{UUID: id(n), Name: fmt.Sprint("snap", n), Source: id(src)}}}
}

func TestCreateLUN(t *testing.T) {
	s := newTable(t)
	_, fx := s.must(lun(1, 4))
	if fx.CreatedLUN == nil || !fx.UnitsChanged || !slices.Equal(fx.LUNs, []string{id(1)}) {
		t.Fatalf("%+v", fx)
	}
	if l := s.LUNs[id(1)]; l.Stage != Preparing || l.Seq != 1 || l.Owner != "a" || l.Preferred != "a" {
		t.Fatalf("%+v", l)
	}
	out, fx := s.must(lun(1, 4)) // asked again before the commit: prepared again
	if out.Noop || fx.CreatedLUN == nil {
		t.Fatalf("%+v %+v", out, fx)
	}
	s.must(Entry{Commit: &Object{UUID: id(1)}})
	if out, fx = s.must(lun(1, 4)); !out.Noop || fx.CreatedLUN != nil {
		t.Fatalf("%+v %+v", out, fx)
	}
	s.refused(ErrExists, lun(1, 8))
	other := lun(2, 4)
	other.CreateLUN.LUN.Name = "lun1"
	s.refused(ErrExists, other)
	s.must(lun(3, 4))
	if l := s.LUNs[id(3)]; l.Owner != "b" {
		t.Fatalf("the second LUN is put on %s", l.Owner)
	}
	for name, change := range map[string]func(*LUN){
		"uuid": func(l *LUN) { l.UUID = "../../etc/passwd" }, "no uuid": func(l *LUN) { l.UUID = "" }, "upper case": func(l *LUN) { l.UUID = "A" + l.UUID[1:] },
		"size 0": func(l *LUN) { l.Size = 0 }, "odd size": func(l *LUN) { l.Size++ }, "negative": func(l *LUN) { l.Size = -1 << 20 },
		"huge": func(l *LUN) { l.Size = MaxSize + SizeStep }, "node": func(l *LUN) { l.Preferred = "c" },
	} {
		e := lun(4, 4)
		change(&e.CreateLUN.LUN)
		t.Run(name, func(t *testing.T) { s.t = t; s.refused(ErrInvalid, e) })
	}
}

func TestCloneSources(t *testing.T) {
	s := newTable(t)
	from := func(n int, size int64, snapshot, lun string) Entry {
		e := Entry{CreateLUN: &CreateLUN{LUN: LUN{UUID: id(n), Name: fmt.Sprint("clone", n), Size: size << 20, SourceSnapshot: snapshot, SourceLUN: lun}}}
		return e
	}
	s.refused(ErrNotFound, from(5, 4, "", id(1)))
	s.must(lun(1, 4))
	s.refused(ErrNotFound, from(5, 4, "", id(1))) // still being made
	s.must(Entry{Commit: &Object{UUID: id(1)}})
	s.must(snap(9, 1))
	s.refused(ErrNotFound, from(5, 4, id(9), ""))
	s.must(Entry{Commit: &Object{UUID: id(9)}})
	s.refused(ErrInvalid, from(5, 2, id(9), ""))
	s.refused(ErrInvalid, from(5, 2, "", id(1)))
	s.must(from(5, 8, id(9), ""))
	s.must(from(6, 4, "", id(1)))
}

func TestSnapshotEntriesAreApplied(t *testing.T) {
	s := newTable(t)
	s.refused(ErrNotFound, snap(9, 1))
	s.must(lun(1, 4))
	s.refused(ErrNotFound, snap(9, 1))
	s.must(Entry{Commit: &Object{UUID: id(1)}})
	bad := snap(9, 1)
	bad.CreateSnapshot.Snapshot.UUID = "x"
	s.refused(ErrInvalid, bad)
	_, fx := s.must(snap(9, 1))
	if fx.CreatedSnapshot == nil || fx.CreatedSnapshot.Size != 4<<20 {
		t.Fatalf("%+v", fx)
	}
	s.refused(ErrUnfinished, snap(9, 1)) // the source may have changed since: aborted first, then made again
	s.must(Entry{Abort: &Object{UUID: id(9)}})
	if _, fx = s.must(snap(9, 1)); fx.CreatedSnapshot == nil || s.Snapshots[id(9)].Born != s.Index {
		t.Fatal("it is not prepared again")
	}
	s.must(Entry{Commit: &Object{UUID: id(9)}})
	if out, _ := s.must(snap(9, 1)); !out.Noop {
		t.Fatal("not a no-op")
	}
	s.ready(2, 4)
	s.refused(ErrExists, snap(9, 2))
	same := snap(10, 1)
	same.CreateSnapshot.Snapshot.Name = "snap9"
	s.refused(ErrExists, same)
	if _, fx = s.must(Entry{DeleteSnapshot: &Object{UUID: id(9)}}); fx.RemovedSnapshot != id(9) || s.Snapshots[id(9)] != nil {
		t.Fatalf("%+v", fx)
	}
	if out, fx := s.must(Entry{DeleteSnapshot: &Object{UUID: id(9)}}); !out.Noop || fx.RemovedSnapshot != "" {
		t.Fatal("not a no-op")
	}
}

// Room is made on both nodes before anybody sees the new size.
func TestGrowChangesNothingThatIsSeen(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	_, fx := s.must(Entry{Grow: &Expand{UUID: id(1), Size: 8 << 20}})
	if fx.Grown == nil || fx.Grown.Size != 8<<20 || s.LUNs[id(1)].Size != 4<<20 || fx.Resized != nil {
		t.Fatalf("%+v", fx)
	}
	if out, fx := s.must(Entry{Grow: &Expand{UUID: id(1), Size: 2 << 20}}); !out.Noop || fx.Grown != nil {
		t.Fatalf("%+v", fx)
	}
	s.refused(ErrNotFound, Entry{Grow: &Expand{UUID: id(7), Size: 8 << 20}})
	s.refused(ErrInvalid, Entry{Grow: &Expand{UUID: id(1), Size: 8<<20 + 1}})
}

func TestMarkLostLastsUntilMappedAnew(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	m := Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.x"}}
	s.must(m)
	s.must(Entry{MarkLost: &MarkLost{UUIDs: []string{id(1), id(7)}}})
	s.must(m) // asked again: the mapping that is, and what was lost with it
	if !s.LUNs[id(1)].Maps["iqn.x"].Lost {
		t.Fatal("forgotten")
	}
	s.must(Entry{MapHost: &MapHost{UUID: id(1), Host: "iqn.y"}})
	if s.LUNs[id(1)].Maps["iqn.y"].Lost {
		t.Fatal("a host that came later lost nothing")
	}
	s.must(Entry{UnmapHost: &UnmapHost{UUID: id(1), Host: "iqn.x"}})
	s.must(m)
	if s.LUNs[id(1)].Maps["iqn.x"].Lost {
		t.Fatal("it outlives the publication")
	}
}

func TestCommitAndAbort(t *testing.T) {
	s := newTable(t)
	s.refused(ErrNotFound, Entry{Commit: &Object{UUID: id(1)}})
	s.must(lun(1, 4))
	if _, fx := s.must(Entry{Abort: &Object{UUID: id(1)}}); fx.RemovedLUN != id(1) || s.LUNs[id(1)] != nil {
		t.Fatalf("%+v", fx)
	}
	s.ready(1, 4)
	if _, fx := s.must(Entry{Abort: &Object{UUID: id(1)}}); fx.RemovedLUN != "" || s.LUNs[id(1)] == nil {
		t.Fatal("an abort that comes late removes a LUN that is in use")
	}
	s.must(snap(9, 1))
	if _, fx := s.must(Entry{Abort: &Object{UUID: id(9)}}); fx.RemovedSnapshot != id(9) {
		t.Fatalf("%+v", fx)
	}
	s.must(Entry{Abort: &Object{UUID: id(77)}})
}

func TestDeleteAndExpand(t *testing.T) {
	s := newTable(t)
	s.refused(ErrNotFound, Entry{Expand: &Expand{id(1), 8 << 20}})
	s.must(lun(1, 4))
	s.refused(ErrNotReady, Entry{Expand: &Expand{id(1), 8 << 20}})
	s.must(Entry{Commit: &Object{UUID: id(1)}})
	before := s.LUNs[id(1)]
	if _, fx := s.must(Entry{Expand: &Expand{id(1), 8 << 20}}); fx.Resized == nil || s.LUNs[id(1)].Size != 8<<20 || before.Size != 4<<20 {
		t.Fatalf("%+v: readers of the old value must not see it change", fx)
	}
	if out, fx := s.must(Entry{Expand: &Expand{id(1), 4 << 20}}); !out.Noop || fx.Resized != nil {
		t.Fatal("a smaller size is a no-op")
	}
	s.refused(ErrInvalid, Entry{Expand: &Expand{id(1), 8<<20 + 1}})
	s.must(Entry{MapHost: &MapHost{UUID: id(1), Host: "h"}})
	s.refused(ErrInUse, Entry{DeleteLUN: &Object{UUID: id(1)}})
	s.must(Entry{UnmapHost: &UnmapHost{id(1), "h"}})
	if _, fx := s.must(Entry{DeleteLUN: &Object{UUID: id(1)}}); fx.RemovedLUN != id(1) || !fx.UnitsChanged {
		t.Fatalf("%+v", fx)
	}
	if out, _ := s.must(Entry{DeleteLUN: &Object{UUID: id(1)}}); !out.Noop {
		t.Fatal("not a no-op")
	}
}

// Numbers go upwards, so that a host meets one again as late as possible: a device node that it
// still holds by mistake must not become another LUN.
func TestLUNNumbers(t *testing.T) {
	s := newTable(t)
	for n := range 4 {
		s.ready(n, 1)
	}
	m := func(n int, host string) Map {
		t.Helper()
		out, _ := s.must(Entry{MapHost: &MapHost{UUID: id(n), Host: host}})
		return *out.Map
	}
	unmap := func(n int) { s.must(Entry{UnmapHost: &UnmapHost{id(n), "h"}}) }
	if a, b, c := m(0, "h"), m(1, "h"), m(0, "other"); a.LUN != 0 || b.LUN != 1 || c.LUN != 0 || a.Generation >= b.Generation {
		t.Fatalf("%+v %+v %+v", a, b, c)
	}
	if again := m(0, "h"); again.LUN != 0 {
		t.Fatalf("%+v", again)
	}
	unmap(0)
	if x := m(0, "h"); x.LUN != 2 {
		t.Fatalf("number %d is used again at once", x.LUN)
	}
	s.Hosts["h"].NextLUN = MaxLUN
	if x := m(2, "h"); x.LUN != MaxLUN {
		t.Fatalf("%+v", x)
	}
	if x := m(3, "h"); x.LUN != 0 { // around: 0 is free again
		t.Fatalf("%+v", x)
	}
	unmap(2)
	s.Hosts["h"].NextLUN = 0
	if x := m(2, "h"); x.LUN != 3 { // 0, 1 and 2 are taken
		t.Fatalf("%+v", x)
	}
	s.refused(ErrNotFound, Entry{MapHost: &MapHost{UUID: id(99), Host: "h"}})
	s.refused(ErrExists, Entry{MapHost: &MapHost{UUID: id(0), Host: "h", ReadOnly: true}})
	s.refused(ErrInUse, Entry{MapHost: &MapHost{UUID: id(3), Host: "second", Exclusive: true}})
	s.must(Entry{MapHost: &MapHost{UUID: id(3), Host: "h", Exclusive: true}}) // its own mapping is no obstacle
	s.must(lun(50, 1))
	s.refused(ErrNotReady, Entry{MapHost: &MapHost{UUID: id(50), Host: "h"}})
}

func TestLUNNumbersRunOut(t *testing.T) {
	s := NewState()
	h := &Host{IQN: "h"}
	for n := range MaxLUN + 1 {
		s.LUNs[id(n)] = &LUN{UUID: id(n), Maps: map[string]Map{"h": {LUN: uint16(n)}}}
	}
	if n, ok := s.freeLUN(h); ok {
		t.Fatalf("number %d is given twice", n)
	}
	delete(s.LUNs, id(777))
	if n, ok := s.freeLUN(h); !ok || n != 777 {
		t.Fatalf("%d %v", n, ok)
	}
}

func TestUnmapFences(t *testing.T) {
	s := newTable(t)
	s.ready(1, 1)
	for _, h := range []string{"h2", "h1"} {
		s.must(Entry{MapHost: &MapHost{UUID: id(1), Host: h}})
	}
	nexus := scsi.NexusID{Initiator: "h1", Port: 1}
	out, fx := s.must(Entry{PR: &PR{UUID: id(1), Nexus: nexus, Req: scsi.PROut{Action: scsi.PRRegister, ServiceKey: 7}}})
	if out.SCSI == nil || out.SCSI.Status != scsi.StatusGood || fx.PRLUN != id(1) || s.LUNs[id(1)].PR == nil {
		t.Fatalf("%+v %+v", out, fx)
	}
	_, fx = s.must(Entry{UnmapHost: &UnmapHost{UUID: id(1), Host: "h1"}})
	if !slices.Equal(fx.Fence, []string{"h1"}) || fx.FenceLUN != id(1) || !fx.MapsChanged {
		t.Fatalf("%+v", fx)
	}
	if pr := s.LUNs[id(1)].PR; len(s.LUNs[id(1)].Maps) != 1 || pr != nil && len(pr.Registrants) > 0 {
		t.Fatalf("the registration survives the unmapping: %+v", pr)
	}
	if _, fx = s.must(Entry{UnmapHost: &UnmapHost{UUID: id(1), Host: "h1"}}); !slices.Equal(fx.Fence, []string{"h1"}) {
		t.Fatal("asked again, the fence is not made sure of again")
	}
	s.must(Entry{MapHost: &MapHost{UUID: id(1), Host: "h1"}})
	if _, fx = s.must(Entry{UnmapHost: &UnmapHost{UUID: id(1)}}); !slices.Equal(fx.Fence, []string{"h1", "h2"}) {
		t.Fatalf("all hosts: %+v", fx)
	}
	if out, _ := s.must(Entry{UnmapHost: &UnmapHost{UUID: id(9)}}); !out.Noop {
		t.Fatal("not a no-op")
	}
}

func TestOwnershipMovesByEntry(t *testing.T) {
	s := newTable(t)
	s.ready(1, 1)
	s.ready(2, 1)
	_, fx := s.must(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1), id(9)}, To: "b"}})
	if l := s.LUNs[id(1)]; l.Owner != "b" || l.Seq != 2 || !slices.Equal(fx.Moved, []string{id(1)}) || !fx.UnitsChanged {
		t.Fatalf("%+v %+v", l, fx)
	}
	if out, _ := s.must(Entry{SetOwner: &SetOwner{All: true, To: "b"}}); !out.Noop || s.LUNs[id(1)].Seq != 2 {
		t.Fatal("what is there already must keep its sequence number")
	}
	s.must(Entry{SetOwner: &SetOwner{All: true, To: "a"}})
	if s.Owned("a") != 2 {
		t.Fatal("all")
	}
	s.refused(ErrInvalid, Entry{SetOwner: &SetOwner{All: true, To: "c"}})
}

func TestModeResetAndUnknown(t *testing.T) {
	s := newTable(t)
	s.refused(ErrNotFound, Entry{Mode: &Mode{UUID: id(1)}})
	s.refused(ErrNotFound, Entry{PR: &PR{UUID: id(1)}})
	s.ready(1, 1)
	if out, _ := s.apply(Entry{Mode: &Mode{UUID: id(1)}}); out.SCSI == nil {
		t.Fatalf("a MODE SELECT has no status: %+v", out)
	}
	if _, fx := s.must(Entry{Reset: &Reset{UUID: id(1)}}); fx.Reset == nil || fx.Reset.UUID != id(1) {
		t.Fatalf("%+v", fx)
	}
	s.refused(ErrInvalid, Entry{})
}

func TestOutcomeErrors(t *testing.T) {
	for code, want := range codes {
		o := failed(code, "text %d", 7)
		if err := o.Err(); !errors.Is(err, want) || err.Error() == want.Error() {
			t.Errorf("%s: %v", code, err)
		}
	}
	if o := (Outcome{Code: "of the future", Error: "text"}); o.Err() == nil || o.Err().Error() != "text" {
		t.Error(o.Err())
	}
	if o := (Outcome{}); o.Err() != nil {
		t.Error(o.Err())
	}
}
