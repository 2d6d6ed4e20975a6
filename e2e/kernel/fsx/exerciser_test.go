package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func exercise(t *testing.T, seed uint64, steps int) *exerciser {
	x, err := open(filepath.Join(t.TempDir(), "f"), seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.f.Close() })
	for range steps {
		if err := x.step(); errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the filesystem of TMPDIR cannot zero ranges:", err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func TestSoundFile(t *testing.T) {
	for seed := range uint64(4) {
		if err := exercise(t, seed, 1500).whole(); err != nil {
			t.Fatal(seed, err)
		}
	}
}

func TestDamageIsFound(t *testing.T) {
	for name, damage := range map[string]func(f *os.File, size int64) error{
		"a byte":  func(f *os.File, size int64) error { _, err := f.WriteAt([]byte{0, 1}, size/2); return err },
		"a tail":  func(f *os.File, size int64) error { return f.Truncate(size - 1) },
		"too big": func(f *os.File, size int64) error { return f.Truncate(size + 1) },
	} {
		t.Run(name, func(t *testing.T) {
			x := exercise(t, 7, 200)
			if err := x.truncate(maxSize/2, 0); err != nil {
				t.Fatal(err)
			}
			if err := x.whole(); err != nil {
				t.Fatal(err)
			}
			if err := damage(x.f, int64(len(x.want))); err != nil {
				t.Fatal(err)
			}
			if x.whole() == nil {
				t.Fatal("not found by the comparison of the whole")
			}
		})
	}
	x := exercise(t, 8, 200)
	if err := x.write(0, maxLength); err != nil {
		t.Fatal(err)
	}
	x.want[77]++
	if x.read(0, 100) == nil || x.mapRead(0, 100) == nil || x.read(100, 100) != nil {
		t.Fatal("reads do not compare")
	}
}
