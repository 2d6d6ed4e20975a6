package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func withSums() Options { return Options{Sums: &SumsOptions{}} }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// content number n of a range; 0 is zeroes.
func content(n uint64, length int) []byte {
	p := make([]byte, length)
	if n != 0 {
		r := rand.New(rand.NewPCG(n, 1))
		for i := 0; i+8 <= length; i += 8 {
			binary.LittleEndian.PutUint64(p[i:], r.Uint64())
		}
	}
	return p
}

// image opens the file of a LUN behind the store's back.
func imageOf(t testing.TB, s *Store, id string) *os.File {
	t.Helper()
	full, _, err := s.Default().path(kindLUN, id)
	must(t, err)
	f, err := os.OpenFile(full, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// flip changes a bit of a LUN behind the store's back.
func flip(t testing.TB, s *Store, id string, off int64) {
	t.Helper()
	f := imageOf(t, s, id)
	var b [1]byte
	_, err := f.ReadAt(b[:], off)
	must(t, err)
	b[0] ^= 4
	_, err = f.WriteAt(b[:], off)
	must(t, err)
}

// wrong reads a range and says which blocks do not check.
func wrong(t testing.TB, f *File, off, length int64) []Range {
	t.Helper()
	err := f.ReadAt(make([]byte, length), off)
	if err == nil {
		return nil
	}
	var x *ChecksumError
	if !errors.As(err, &x) || !errors.Is(err, ErrChecksum) {
		t.Fatalf("read %d+%d: %v", off, length, err)
	}
	if !strings.Contains(err.Error(), f.path) || x.Path != f.path {
		t.Errorf("%v does not name %s", err, f.path)
	}
	return x.Blocks
}

func wantWrong(t testing.TB, f *File, want ...Range) {
	t.Helper()
	size, err := f.Size()
	must(t, err)
	if got := wrong(t, f, 0, size); !reflect.DeepEqual(got, want) {
		t.Errorf("blocks that do not check: %v, want %v", got, want)
	}
	if err := f.s.Failed(); err != nil {
		t.Errorf("the store has failed: %v", err)
	}
}

// reads says what a range holds.
func reads(t testing.TB, f *File, off int64, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if err := f.ReadAt(got, off); err != nil {
		t.Errorf("read %d+%d: %v", off, len(want), err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("read %d+%d: not what was written", off, len(want))
	}
}

func openLUN(t testing.TB, s *Store, id string) *File {
	t.Helper()
	f, err := s.Default().OpenLUN(id)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// crashed is a copy of a store as the death of its process leaves it: what is in the page cache is
// there, what is only in its memory is not.
func crashed(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	return open(t, copied(t, dir), opts)
}

// copied keeps holes, so that a copy of large LUNs is small.
func copied(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		if err := copySparseFile(path, filepath.Join(to, rel)); err != nil {
			return err
		}
		var born [20]byte
		if n, err := unix.Getxattr(path, bornAttr, born[:]); err == nil {
			return unix.Setxattr(filepath.Join(to, rel), bornAttr, born[:n], 0)
		}
		return nil
	}))
	return to
}

func copySparseFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	buf, zero := make([]byte, 64<<10), make([]byte, 64<<10)
	var at int64
	for {
		n, err := io.ReadFull(in, buf)
		if n > 0 && !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := out.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out.Truncate(at)
		}
		if err != nil {
			return err
		}
	}
}
