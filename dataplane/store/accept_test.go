package store

import (
	"errors"
	"reflect"
	"testing"
)

func TestUnknownIsAMismatchUntilAccepted(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, withSums())
	must(t, err)
	f := newLUN(t, s, lunA, 2<<20)
	model := content(1, 2<<20)
	must(t, f.WriteAt(model, 0))
	must(t, f.SetBad(127*4096, 4096))
	must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close()))
	rotSector(t, dir, lunA, 0)
	s = open(t, dir, withSums())
	f = openLUN(t, s, lunA)
	wantWrong(t, f, Range{0, 126 * 4096}, Range{127 * 4096, 4096})
	must(t, f.WriteAt(content(2, 512), 4096)) // in part: the rest is still unknown
	copy(model[4096:], content(2, 512))
	must(t, f.WriteAt(content(3, 4096), 8192))
	copy(model[8192:], content(3, 4096))
	wantWrong(t, f, Range{0, 8192}, Range{12288, 123 * 4096}, Range{127 * 4096, 4096})
	flip(t, s, lunA, 8192)
	lost, err := f.Accept(0, 2<<20)
	must(t, err)
	if want := []Range{{8192, 4096}, {127 * 4096, 4096}}; !reflect.DeepEqual(lost, want) {
		t.Errorf("lost %v, want %v", lost, want)
	}
	wantWrong(t, f, lost...)
	reads(t, f, 0, model[:8192])
	reads(t, f, 12288, model[12288:126*4096])
	if st := s.SumsStats(); st.LostSectors != 1 {
		t.Errorf("%+v", st)
	}
}

// TestAcceptLeavesWhatCannotBeRead: block by block.
func TestAcceptLeavesWhatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, withSums())
	must(t, err)
	f := newLUN(t, s, lunA, 2<<20)
	must(t, f.WriteAt(content(1, 2<<20), 0))
	must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close()))
	rotSector(t, dir, lunA, 0)
	opts := withSums()
	opts.Faults = unreadable(40960)
	f = openLUN(t, open(t, dir, opts), lunA)
	lost, err := f.Accept(0, 512<<10)
	if want := []Range{{40960, 4096}}; err != nil || !reflect.DeepEqual(lost, want) {
		t.Errorf("%v, %v, want %v", lost, err, want)
	}
	reads(t, f, 0, content(1, 40960))
}

// Blocks without checksums get them if the whole is what the other node has; else they are marked,
// and stay so.
func TestAcceptEqualBelievesTheOtherCopyOnly(t *testing.T) {
	for name, x := range map[string]struct {
		equal bool
		err   error
		want  []Range // that do not check after it
	}{
		"equal":      {equal: true},
		"different":  {want: []Range{{0, 126 * 4096}}},
		"unreadable": {err: ErrMedia}, // accepted, and not yet marked: the caller gets the error
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, testIdent, withSums())
			must(t, err)
			f := newLUN(t, s, lunA, 1<<20)
			must(t, f.WriteAt(content(1, 1<<20), 0))
			must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close()))
			rotSector(t, dir, lunA, 0)
			f = openLUN(t, open(t, dir, withSums()), lunA)
			bad := Mismatched(f.ReadAt(make([]byte, 1<<20), 0))
			if want := []Range{{0, 126 * 4096}}; !reflect.DeepEqual(bad, want) {
				t.Fatalf("%v, want %v", bad, want)
			}
			same, err := f.AcceptEqual(bad, func() (bool, error) { return x.equal, x.err })
			if same != x.equal || !errors.Is(err, x.err) {
				t.Errorf("%v, %v", same, err)
			}
			wantWrong(t, f, x.want...)
		})
	}
}

// A block that is known not to be what was written is not accepted, and the peer is not asked.
func TestAcceptEqualRefusesDamage(t *testing.T) {
	s := open(t, t.TempDir(), withSums())
	f := newLUN(t, s, lunA, 1<<20)
	must(t, f.WriteAt(content(1, 1<<20), 0))
	flip(t, s, lunA, 8192)
	bad := Mismatched(f.ReadAt(make([]byte, 1<<20), 0))
	same, err := f.AcceptEqual(bad, func() (bool, error) { t.Error("asked"); return true, nil })
	if same || err != nil {
		t.Errorf("%v, %v", same, err)
	}
	wantWrong(t, f, Range{8192, 4096})
	if got := Mismatched(errors.New("another error")); got != nil {
		t.Errorf("%v", got)
	}
}
