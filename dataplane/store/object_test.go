package store

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/sums"
)

// TestFilesOfOneLUNShareItsChecksums, and a LUN that is made again under the same uuid has others.
func TestFilesOfOneLUNShareItsChecksums(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, withSums())
	v := s.Default()
	f := newLUN(t, s, lunA, 1<<20)
	g := openLUN(t, s, lunA)
	must(t, f.WriteAt(content(1, 8192), 0))
	reads(t, g, 0, content(1, 8192))
	must(t, g.WriteAt(content(2, 512), 512))
	must(t, g.Close())
	if got := wrong(t, f, 0, 1<<20); got != nil {
		t.Errorf("%v", got)
	}
	must(t, v.DeleteLUN(lunA))
	if _, err := os.Stat(sumsFile(dir, lunA)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("checksums of a deleted LUN: %v", err)
	}
	must(t, v.CreateLUN(lunA, 2<<20, NoBirth))
	h := openLUN(t, s, lunA)
	must(t, h.WriteAt(content(3, 8192), 4096))
	must(t, f.WriteAt(content(4, 8192), 0)) // the nameless one continues
	reads(t, f, 0, content(4, 8192))
	wantWrong(t, f)
	wantWrong(t, h)
	reads(t, h, 4096, content(3, 8192))
	must(t, f.Checkpoint())
	must(t, f.Close())
	wantWrong(t, h)
	must(t, h.Close())
	must(t, errors.Join(v.DeleteLUN(lunA), v.DeleteLUN(lunA)))
	noFiles(t, dir)
	if st := s.SumsStats(); len(v.opened.all) != 0 || st.Pages != 0 || st.Dirty != 0 {
		t.Errorf("%d objects, %+v", len(v.opened.all), st)
	}
}

// TestCloseKeepsChecksums: what is closed and opened again in one life of a process is not in
// doubt.
func TestCloseKeepsChecksums(t *testing.T) {
	s := open(t, t.TempDir(), withSums())
	f := newLUN(t, s, lunA, 1<<20)
	for i := range uint64(5) {
		must(t, f.WriteAt(content(i+1, 8192), int64(i)*4096))
		must(t, f.Close())
		f = openLUN(t, s, lunA)
		wantWrong(t, f)
	}
}

// TestManyOpenAndClose at the same time as the LUN is deleted and made again.
func TestManyOpenAndClose(t *testing.T) {
	s := open(t, t.TempDir(), withSums())
	v := s.Default()
	must(t, v.CreateLUN(lunA, 1<<20, NoBirth))
	var wg, changer sync.WaitGroup
	stop := make(chan struct{})
	changer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := errors.Join(v.DeleteLUN(lunA), v.CreateLUN(lunA, 1<<20, NoBirth)); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for w := range int64(4) {
		wg.Go(func() {
			for i := range uint64(60) {
				f, err := v.OpenLUN(lunA)
				if errors.Is(err, ErrNotFound) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				p := content(i+1, 4096)
				if err := errors.Join(f.WriteAt(p, w*4096), f.ReadAt(p, w*4096), f.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	changer.Wait()
	wantWrong(t, openLUN(t, s, lunA))
}

// TestCopiesInheritChecksums, also those that are in memory only, and what is wrong with their
// source.
func TestCopiesInheritChecksums(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, withSums())
	v := s.Default()
	f := newLUN(t, s, lunA, 4<<20+512)
	model := content(1, 4<<20+512)
	must(t, f.WriteAt(model, 0))
	must(t, f.Discard(1<<20, 1<<20))
	clear(model[1<<20 : 2<<20])
	flip(t, s, lunA, 8192)
	must(t, f.SetBad(12288, 4096))
	f.Doubt(3<<20, 1<<20)
	flip(t, s, lunA, 3<<20)
	model[3<<20] ^= 4
	want := []Range{{8192, 8192}}
	must(t, v.Snapshot(t.Context(), lunA, snapA, 1, nil))
	if f.DoubtedBlocks() != 0 {
		t.Errorf("%d blocks in doubt: the copy has no write-intent bits that would say so after a crash", f.DoubtedBlocks())
	}
	must(t, v.CloneFromSnapshot(t.Context(), snapA, lunB, 6<<20, 1, nil))
	const lunC, lunD = "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e04", "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e05"
	must(t, f.WriteAt(content(5, 4096), 0)) // after the snapshot
	must(t, v.CloneLUN(t.Context(), lunA, lunC, 4<<20+512, 1, nil))
	must(t, v.CloneLUN(t.Context(), lunA, lunC, 4<<20+512, 1, nil)) // again
	look := func(s *Store) {
		t.Helper()
		snap, err := s.Default().OpenSnapshot(snapA)
		must(t, err)
		defer snap.Close()
		wantWrong(t, snap, want...)
		reads(t, snap, 16384, model[16384:])
		reads(t, snap, 0, model[:8192])
		g := openLUN(t, s, lunB)
		wantWrong(t, g, want...)
		reads(t, g, 16384, append(append([]byte(nil), model[16384:]...), make([]byte, 2<<20-512)...))
		wantWrong(t, openLUN(t, s, lunC), want...)
		reads(t, openLUN(t, s, lunC), 0, content(5, 4096))
		if done, total := g.Adopted(); done != 6<<20 || total != done {
			t.Errorf("adopted %d of %d", done, total)
		}
	}
	look(s)
	look(crashed(t, dir, withSums())) // no confirmation is needed for what was made durable
	if err := v.CloneLUN(t.Context(), lunA, lunD, 1<<20, 1, nil); !errors.Is(err, ErrShrink) {
		t.Errorf("%v", err)
	}
	must(t, v.DeleteSnapshot(snapA))
	wantWrong(t, openLUN(t, s, lunB), want...)
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, tmpSuffix) && filepath.Base(path) != sumsMark || strings.Contains(path, snapA) {
			t.Errorf("%s is left", path)
		}
		return err
	}))
}

func TestResizeGrowsChecksums(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, withSums())
	v := s.Default()
	f := newLUN(t, s, lunA, 1<<20+512)
	must(t, f.WriteAt(content(1, 512), 1<<20))
	must(t, v.ResizeLUN(lunA, 1<<20+512, 32<<20))
	must(t, v.ResizeLUN(lunA, 32<<20, 32<<20))
	reads(t, f, 1<<20, append(content(1, 512), make([]byte, 7680)...))
	must(t, f.WriteAt(content(2, 8192), 31<<20))
	wantWrong(t, f)
	must(t, f.Checkpoint())
	flip(t, s, lunA, 32<<20-1)
	wantWrong(t, openLUN(t, crashed(t, dir, withSums()), lunA), Range{32<<20 - 4096, 4096})
	must(t, f.Close())
	must(t, v.ResizeLUN(lunA, 32<<20, 40<<20)) // of one that is not open
	wantWrong(t, openLUN(t, s, lunA), Range{32<<20 - 4096, 4096})
}

// TestChecksumsOfEachVolume: an object may be made in another one before it is deleted in its own.
func TestChecksumsOfEachVolume(t *testing.T) {
	dir := t.TempDir()
	opts := shared(BackingVolumeDir{"fast", t.TempDir()})
	opts.Sums = &SumsOptions{}
	s := open(t, dir, opts)
	fast, err := s.Volume("fast")
	must(t, err)
	must(t, errors.Join(s.Default().CreateLUN(lunA, 1<<20, NoBirth), fast.CreateLUN(lunA, 1<<20, NoBirth)))
	f := openLUN(t, s, lunA)
	g, err := fast.OpenLUN(lunA)
	must(t, err)
	must(t, errors.Join(f.WriteAt(content(1, 4096), 0), g.WriteAt(content(2, 4096), 0)))
	wantWrong(t, f)
	wantWrong(t, g)
	must(t, s.Default().DeleteLUN(lunA))
	must(t, g.Close())
	g, err = fast.OpenLUN(lunA)
	must(t, err)
	wantWrong(t, g)
	must(t, g.Close())
	if _, err := os.Stat(filepath.Join(dir, "sums", "fast", "luns", lunA+".sums")); err != nil {
		t.Error(err)
	}
}

// TestStandInsHaveNothingOfWhatIsGone.
func TestStandInsHaveNothingOfWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, withSums())
	f := newLUN(t, s, lunA, 1<<20)
	must(t, f.WriteAt(content(1, 4096), 0))
	must(t, os.Remove(imageOf(t, s, lunA).Name()))
	must(t, s.Default().StandIn(lunA))
	if err := s.Default().StandIn(lunA); err == nil {
		t.Error("in the place of an image that is there")
	}
	g := openLUN(t, s, lunA)
	if n, err := g.Size(); err != nil || n != 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	must(t, f.Checkpoint())
	must(t, errors.Join(f.Close(), g.Checkpoint(), g.Close()))
	must(t, s.Default().DeleteLUN(lunA))
	must(t, s.Default().CreateLUN(lunA, 1<<20, NoBirth))
	wantWrong(t, openLUN(t, s, lunA))
}

// TestWithoutAndThenWithChecksums: what was written without them is not held against an image.
func TestWithoutAndThenWithChecksums(t *testing.T) {
	for name, without := range map[string]func(t *testing.T, dir string){
		"this version": func(t *testing.T, dir string) {
			s, err := Open(dir, testIdent, Options{})
			must(t, err)
			if _, err := os.Stat(filepath.Join(dir, sumsDir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v", err)
			}
			f, err := s.Default().OpenLUN(lunA)
			must(t, err)
			if f.obj != nil || s.SumsStats() != (sums.Stats{}) || s.SumsCounts() != (SumsCounts{}) {
				t.Error("checksums")
			}
			must(t, errors.Join(f.WriteAt(content(2, 8192), 4096), f.Checkpoint(), f.Close(), s.Close()))
		},
		// It knows of no checksums, and deletes what has the name of a leftover.
		"an older version": func(t *testing.T, dir string) {
			luns := filepath.Join(dir, "volumes", DefaultBackingVolume, "luns")
			must(t, removeLeftovers(luns))
			f, err := os.OpenFile(filepath.Join(luns, lunA+imgSuffix), os.O_RDWR, 0)
			must(t, err)
			_, err = f.WriteAt(content(2, 8192), 4096)
			must(t, errors.Join(err, f.Close()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, testIdent, withSums())
			must(t, err)
			f := newLUN(t, s, lunA, 1<<20)
			must(t, f.WriteAt(content(1, 1<<20), 0))
			must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close()))
			without(t, dir)
			s, err = Open(dir, testIdent, withSums())
			must(t, err)
			f = openLUN(t, s, lunA)
			if done, total := f.Adopted(); done != 0 || total != 1<<20 {
				t.Errorf("adopted %d of %d", done, total)
			}
			reads(t, f, 4096, content(2, 8192))
			must(t, f.Adopt(t.Context()))
			must(t, errors.Join(f.Close(), s.Close()))
			s = open(t, dir, withSums()) // and these are kept
			flip(t, s, lunA, 5000)
			f = openLUN(t, s, lunA)
			if done, total := f.Adopted(); done != total {
				t.Errorf("adopted %d of %d", done, total)
			}
			wantWrong(t, f, Range{4096, 4096})
		})
	}
}

// TestChecksumsThatAreLost are made again of what is there; the image is not concerned.
func TestChecksumsThatAreLost(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, damage := range map[string]func(path string) error{
		"deleted":   os.Remove,
		"cut off":   func(path string) error { return os.Truncate(path, 4096) },
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"a header":  func(path string) error { return overwrite(path, content(rnd.Uint64(), 64)) },
		"a LUN's B": func(path string) error { return os.Rename(strings.Replace(path, lunA, lunB, 1), path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, testIdent, withSums())
			must(t, err)
			f, g := newLUN(t, s, lunA, 1<<20), newLUN(t, s, lunB, 1<<20)
			must(t, errors.Join(f.WriteAt(content(1, 1<<20), 0), g.WriteAt(content(2, 1<<20), 0)))
			must(t, errors.Join(f.Checkpoint(), g.Checkpoint(), f.Close(), g.Close(), s.Close()))
			must(t, damage(sumsFile(dir, lunA)))
			s = open(t, dir, withSums())
			f = openLUN(t, s, lunA)
			reads(t, f, 0, content(1, 1<<20))
			if done, _ := f.Adopted(); done != 0 {
				t.Errorf("adopted %d", done)
			}
			must(t, f.WriteAt(content(3, 512), 512))
			flip(t, s, lunA, 0)
			wantWrong(t, f, Range{0, 4096}) // what was written or read since is known
			must(t, s.Default().Snapshot(t.Context(), lunA, snapA, 1, nil))
			snap, err := s.Default().OpenSnapshot(snapA)
			must(t, err)
			if done, _ := snap.Adopted(); done != 0 {
				t.Errorf("a copy: adopted %d", done)
			}
			must(t, snap.Adopt(t.Context()))
			wantWrong(t, snap, Range{0, 4096})
			must(t, snap.Close())
		})
	}
}

func overwrite(path string, p []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(p, 0)
	return errors.Join(err, f.Close())
}

// TestLeftoversOfChecksums are removed when the store is opened.
func TestLeftoversOfChecksums(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, withSums())
	must(t, err)
	f := newLUN(t, s, lunA, 1<<20)
	must(t, errors.Join(f.WriteAt(content(1, 4096), 0), f.Checkpoint(), f.Close(), s.Close()))
	orphan, tmp := sumsFile(dir, lunB), sumsFile(dir, lunA)+tmpSuffix
	must(t, errors.Join(os.WriteFile(orphan, nil, 0o600), os.WriteFile(tmp, nil, 0o600)))
	s = open(t, dir, withSums())
	for _, path := range []string{orphan, tmp} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	flip(t, s, lunA, 0)
	wantWrong(t, openLUN(t, s, lunA), Range{0, 4096})
}
