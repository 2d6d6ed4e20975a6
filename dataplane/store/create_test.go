package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A LUN that both nodes make has clean bits from the start, and checksums.
func TestCreateCleanLUN(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	v := s.Default()
	must(t, v.CreateCleanLUN(lunA, testLUN, 7))
	same(t, "at once", onDisk(t, s, testLUN), bitset(testLUN))
	i, err := v.LUN(lunA)
	if err != nil || i.Size != testLUN || v.Births() && i.Born != 7 {
		t.Fatalf("%+v, %v", i, err)
	}
	if err := v.CreateCleanLUN(lunA, MaxIntentSize+1, 7); !errors.Is(err, ErrRange) {
		t.Error(err)
	}
}

// Whichever part cannot be made: no LUN is left, and no clean bits that another LUN of this uuid
// would find.
func TestCreateCleanLUNFails(t *testing.T) {
	boom := errors.New("boom")
	for _, what := range []struct {
		op, suffix string
	}{{FaultCreate, imgSuffix}, {FaultCreate, intentSuffix}, {FaultSums, sumsSuffix}} {
		fail := true
		s := open(t, t.TempDir(), Options{Sums: &SumsOptions{}, Faults: func(op, file string, _, _ int64) error {
			if fail && op == what.op && filepath.Ext(file) == what.suffix {
				return boom
			}
			return nil
		}})
		v := s.Default()
		if err := v.CreateCleanLUN(lunA, testLUN, 7); !errors.Is(err, boom) {
			t.Fatalf("%s: %v", what.suffix, err)
		}
		if _, err := v.LUN(lunA); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: there is a LUN: %v", what.suffix, err)
		}
		full, _, err := v.path(kindIntents, lunA)
		must(t, err)
		if _, err := os.Stat(full); !os.IsNotExist(err) {
			t.Errorf("%s: bits are left: %v", what.suffix, err)
		}
		fail = false
		must(t, v.CreateLUN(lunA, testLUN, 8))
		if x := openIntents(t, s, testLUN); x.Count() != x.Regions() {
			t.Errorf("%s: %d of %d bits are set", what.suffix, x.Count(), x.Regions())
		}
	}
}

// Bits that an earlier process has left are not those of a LUN that is made now.
func TestCreateLUNFindsNoBits(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	v := s.Default()
	must(t, v.CreateCleanLUN(lunA, testLUN, 7))
	full, _, err := v.path(kindLUN, lunA)
	must(t, err)
	must(t, os.Remove(full))
	must(t, v.CreateLUN(lunA, testLUN, 8))
	if x := openIntents(t, s, testLUN); x.Count() != x.Regions() {
		t.Errorf("%d of %d bits are set", x.Count(), x.Regions())
	}
}
