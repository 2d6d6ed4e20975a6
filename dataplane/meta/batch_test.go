package meta

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

func mapTo(n int, host string) Entry { return Entry{MapHost: &MapHost{UUID: id(n), Host: host}} }

func batch(parts ...Entry) Entry {
	var e Entry
	for i := range parts {
		e.Batch = append(e.Batch, &parts[i])
	}
	return e
}

// The parts of a batch do what they do one after the other, at one index; what is refused of them
// is refused alone.
func TestBatch(t *testing.T) {
	single, together := newTable(t), newTable(t)
	for _, s := range []*table{single, together} {
		s.ready(1, 4)
		s.ready(2, 4)
		s.must(lun(3, 4))
	}
	parts := []Entry{lun(4, 8), mapTo(1, "iqn.2026-11.x:1"), mapTo(2, "iqn.2026-11.x:1"), {Commit: &Object{UUID: id(3)}}, mapTo(9, "iqn.2026-11.x:1"), lun(5, -1)}
	e := batch(parts...)
	if !together.Early(&e) || !together.Early(&parts[0]) {
		t.Error("it cannot be made durable before it is seen")
	}
	out, fx := together.must(e)
	index := single.Index + 1
	refused := 0
	for i := range parts {
		want, effect := single.Apply(index, &parts[i])
		if !reflect.DeepEqual(out.Parts[i], want) || !reflect.DeepEqual(fx.Parts[i], &effect) {
			t.Errorf("part %d: %+v %+v, want %+v %+v", i, out.Parts[i], fx.Parts[i], want, effect)
		}
		if want.Code != "" {
			refused++
		}
	}
	a, _ := json.Marshal(single.State)
	b, _ := json.Marshal(together.State)
	if string(a) != string(b) || refused != 2 || len(out.Parts) != len(parts) {
		t.Errorf("%d refused\n%s\n%s", refused, a, b)
	}
	if !fx.UnitsChanged || !fx.MapsChanged || len(fx.LUNs) != 4 || len(fx.Hosts) != 1 {
		t.Errorf("%+v", fx)
	}
	if got := (&Effect{}).Each(); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// A batch with parts that depend on each other, or that do more than change a LUN, changes nothing.
func TestBatchIsRefused(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	copied := lun(2, 4)
	copied.CreateLUN.LUN.SourceLUN = id(1)
	long := batch()
	for i := range MaxBatch + 1 {
		x := lun(10+i, 4)
		long.Batch = append(long.Batch, &x)
	}
	for name, e := range map[string]Entry{
		"twice the same LUN": batch(lun(2, 4), Entry{Commit: &Object{UUID: id(2)}}),
		"a batch":            batch(lun(2, 4), batch(lun(3, 4))),
		"a copy":             batch(lun(3, 4), copied),
		"a removal":          batch(lun(2, 4), Entry{DeleteLUN: &Object{UUID: id(1)}}),
		"what ends commands": batch(Entry{UnmapHost: &UnmapHost{UUID: id(1)}}),
		"nothing":            batch(Entry{}),
		"too many":           long,
		"none":               {Batch: []*Entry{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := json.Marshal(s.LUNs)
			s.Early(&e)
			out, fx := s.Apply(s.Index+1, &e)
			after, _ := json.Marshal(s.LUNs)
			if !errors.Is(out.Err(), ErrInvalid) || string(before) != string(after) || !reflect.DeepEqual(fx, Effect{}) {
				t.Errorf("%+v %+v", out, fx)
			}
		})
	}
}
