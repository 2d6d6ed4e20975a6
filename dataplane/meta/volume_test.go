package meta

import (
	"strings"
	"testing"
)

func lunIn(n int, volume string) Entry {
	e := lun(n, 4)
	e.CreateLUN.LUN.Volume = volume
	return e
}

// Snapshots and copies lie where their source is; what goes says where it was.
func TestVolumesOfCopies(t *testing.T) {
	s := newTable(t)
	_, fx := s.must(lunIn(1, "fast"))
	if fx.CreatedLUN.Volume != "fast" {
		t.Fatalf("%+v", fx.CreatedLUN)
	}
	s.must(lunIn(1, "fast")) // asked again
	s.refused(ErrExists, lun(1, 4))
	s.must(Entry{Commit: &Object{UUID: id(1)}})
	s.refused(ErrExists, lunIn(1, "slow"))
	s.ready(2, 4)
	if _, fx = s.must(snap(10, 1)); fx.CreatedSnapshot.Volume != "fast" {
		t.Fatalf("%+v", fx.CreatedSnapshot)
	}
	s.must(Entry{Commit: &Object{UUID: id(10)}})
	for i, from := range []LUN{{SourceLUN: id(1)}, {SourceSnapshot: id(10)}} {
		n := 3 + i
		copied := func(volume string) Entry {
			e := lunIn(n, volume)
			e.CreateLUN.LUN.SourceLUN, e.CreateLUN.LUN.SourceSnapshot = from.SourceLUN, from.SourceSnapshot
			return e
		}
		s.refused(ErrInvalid, copied("slow"))
		s.must(copied(""))
		s.must(Entry{Commit: &Object{UUID: id(n)}})
		for _, v := range []string{"", "fast"} {
			s.must(copied(v))
		}
		s.refused(ErrExists, copied("slow"))
		if l := s.LUNs[id(n)]; l.Volume != "fast" {
			t.Fatalf("%+v", l)
		}
	}
	e := lunIn(5, "fast")
	e.CreateLUN.LUN.SourceLUN = id(2)
	s.refused(ErrInvalid, e) // of one in the default volume
	if n := s.Volumes(); n["fast"] != 4 || n[""] != 1 || len(n) != 2 {
		t.Errorf("%v", n)
	}
	if _, fx = s.must(Entry{DeleteSnapshot: &Object{UUID: id(10)}}); fx.RemovedSnapshot != id(10) || fx.RemovedVolume != "fast" {
		t.Errorf("%+v", fx)
	}
	if _, fx = s.must(Entry{DeleteLUN: &Object{UUID: id(1)}}); fx.RemovedLUN != id(1) || fx.RemovedVolume != "fast" {
		t.Errorf("%+v", fx)
	}
	if _, fx = s.must(Entry{DeleteLUN: &Object{UUID: id(2)}}); fx.RemovedVolume != "" {
		t.Errorf("%+v", fx)
	}
	s.must(lunIn(6, "fast"))
	if _, fx = s.must(Entry{Abort: &Object{UUID: id(6)}}); fx.RemovedLUN != id(6) || fx.RemovedVolume != "fast" {
		t.Errorf("%+v", fx)
	}
}

// What lies in the default volume is written as it was before there were others.
func TestDefaultVolumeIsNotNamed(t *testing.T) {
	for _, e := range []Entry{lun(1, 4), snap(2, 1)} {
		if strings.Contains(string(e.Encode()), "volume") {
			t.Errorf("%s", e.Encode())
		}
	}
	if VolumeName("") != "default" || VolumeOf("default") != "" || VolumeName("x") != "x" || VolumeOf("x") != "x" {
		t.Error("names")
	}
}
