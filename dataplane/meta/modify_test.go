package meta

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func TestModifyChangesWriteCacheAndPreferredNode(t *testing.T) {
	s := newTable(t)
	s.ready(1, 8)
	yes, no := true, false
	modify := func(preferred string, through *bool) Entry {
		return Entry{Modify: &Modify{UUID: id(1), Preferred: preferred, WriteThrough: through}}
	}
	before := s.LUNs[id(1)]
	for _, e := range []Entry{modify("", nil), modify("a", &no)} {
		if out, fx := s.must(e); !out.Noop || !reflect.DeepEqual(fx, Effect{}) {
			t.Fatalf("what already is changes something: %+v, %+v", out, fx)
		}
	}
	_, fx := s.must(modify("b", &yes))
	l := s.LUNs[id(1)]
	if fx.ModeLUN != id(1) || !slices.Equal(fx.PreferredLUNs, []string{id(1)}) || len(fx.LUNs) != 1 || l.Preferred != "b" || l.Owner != "a" || !l.WriteThrough() || l.Mode.Current.WriteCache {
		t.Fatalf("%+v, %+v", fx, l)
	}
	if before.WriteThrough() || before.Preferred != "a" {
		t.Error("readers of the old value saw it change")
	}
	// A host that asked for WCE before it knew does not get it.
	req := scsi.ModeSelect{Fields: scsi.FieldWriteCache | scsi.FieldDescSense, Values: scsi.ModeValues{WriteCache: true, DescSense: true}, Save: true}
	s.must(Entry{Mode: &Mode{UUID: id(1), Req: req}})
	if m := s.LUNs[id(1)].Mode; m.Current.WriteCache || m.Saved.WriteCache || !m.Current.DescSense {
		t.Fatalf("%+v", m)
	}
	// Taken back; what hosts set besides stays. From then on it is theirs again, and asking again
	// does not undo that.
	s.must(modify("", &no))
	if m := s.LUNs[id(1)].Mode; m.WriteThrough || !m.Current.WriteCache || !m.Default.WriteCache || !m.Current.DescSense {
		t.Fatalf("%+v", m)
	}
	off := scsi.ModeSelect{Fields: scsi.FieldWriteCache}
	s.must(Entry{Mode: &Mode{UUID: id(1), Req: off}})
	if out, _ := s.must(modify("", &no)); !out.Noop || s.LUNs[id(1)].Mode.Current.WriteCache {
		t.Fatal("a host's WCE was overridden")
	}
	// Hosts see no change when they had turned it off themselves.
	if _, fx := s.must(modify("", &yes)); fx.ModeLUN != "" || !s.LUNs[id(1)].WriteThrough() {
		t.Fatalf("%+v", fx)
	}
	s.refused(ErrInvalid, modify("c", nil))
	s.refused(ErrNotFound, Entry{Modify: &Modify{UUID: id(2), Preferred: "a"}})
	s.must(lun(3, 8))
	s.refused(ErrNotReady, Entry{Modify: &Modify{UUID: id(3), Preferred: "b"}})
}

// A group stays until another one, or none, is asked for.
func TestModifyChangesGroup(t *testing.T) {
	s := newTable(t)
	s.ready(1, 8)
	modify := func(group string) Entry { return Entry{Modify: &Modify{UUID: id(1), Group: group}} }
	for _, x := range []struct{ asked, is string }{{"team/db", "team/db"}, {"", "team/db"}, {"team/db", "team/db"}, {"team/web", "team/web"}, {NoGroup, ""}, {NoGroup, ""}} {
		before := s.LUNs[id(1)].Group
		out, fx := s.must(modify(x.asked))
		if is := s.LUNs[id(1)].Group; is != x.is || out.Noop != (is == before) || (len(fx.LUNs) == 0) != out.Noop {
			t.Errorf("asked for %q: %q, %+v, %+v", x.asked, is, out, fx)
		}
	}
	s.refused(ErrInvalid, modify(strings.Repeat("g", MaxGroup+1)))
}

// A quarantine keeps its first reason until it is ended.
func TestModifyChangesTier(t *testing.T) {
	s, apply := owned(t)
	apply(Entry{Commit: &Object{UUID: id(1)}})
	modify := func(tier string) Outcome {
		out, _ := apply(Entry{Modify: &Modify{UUID: id(1), Tier: tier}})
		return out
	}
	for _, c := range []struct {
		tier, want string
		noop       bool
	}{{NoPin, "", true}, {TierFast, TierFast, false}, {TierFast, TierFast, true}, {"", TierFast, true}, {TierCapacity, TierCapacity, false}, {NoPin, "", false}} {
		if out := modify(c.tier); out.Err() != nil || out.Noop != c.noop || s.LUNs[id(1)].Tier != c.want {
			t.Errorf("%q: %+v, the LUN is pinned to %q", c.tier, out, s.LUNs[id(1)].Tier)
		}
	}
	if out := modify("warm"); !errors.Is(out.Err(), ErrInvalid) {
		t.Errorf("%+v", out)
	}
}

func TestModifyQuarantines(t *testing.T) {
	s := newTable(t)
	s.ready(1, 8)
	modify := func(q string) Entry { return Entry{Modify: &Modify{UUID: id(1), Quarantine: q}} }
	for _, x := range []struct{ asked, is string }{{"", ""}, {NoQuarantine, ""}, {"why", "why"}, {"", "why"}, {"another reason", "why"}, {NoQuarantine, ""}, {"once more", "once more"}} {
		before := s.LUNs[id(1)].Quarantine
		out, fx := s.must(modify(x.asked))
		if is := s.LUNs[id(1)].Quarantine; is != x.is || out.Noop != (is == before) || (len(fx.LUNs) == 0) != out.Noop {
			t.Errorf("asked for %q: %q, %+v, %+v", x.asked, is, out, fx)
		}
	}
	s.refused(ErrInvalid, modify(strings.Repeat("q", MaxQuarantine+1)))
}

// What a host saves of what is current already changes no current value, and has to be there after
// a reset all the same.
func TestSavedModeIsKept(t *testing.T) {
	s := newTable(t)
	s.ready(1, 8)
	off := scsi.ModeSelect{Fields: scsi.FieldWriteCache}
	mode := func(req scsi.ModeSelect) Effect {
		_, fx := s.must(Entry{Mode: &Mode{UUID: id(1), Req: req}})
		return fx
	}
	if fx := mode(off); fx.ModeLUN != id(1) {
		t.Fatalf("%+v", fx)
	}
	off.Save = true
	if fx := mode(off); fx.ModeLUN != "" || len(fx.LUNs) != 1 {
		t.Fatalf("%+v", fx)
	}
	if fx := mode(scsi.ModeSelect{Restore: true}); fx.ModeLUN != "" || s.LUNs[id(1)].Mode.Current.WriteCache {
		t.Fatalf("a reset took back what was saved: %+v", fx)
	}
	if fx := mode(off); len(fx.LUNs) != 0 {
		t.Fatalf("nothing changed, and it is written: %+v", fx)
	}
}
