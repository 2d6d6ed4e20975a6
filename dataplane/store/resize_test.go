package store

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// What a file has beyond the end of its LUN is never in the LUN, however it came there.
func TestGrowALongerFile(t *testing.T) {
	const size = 1<<20 + 512 // it ends within a block
	for name, lengthen := range map[string]func(t *testing.T, s *Store, f *File){
		"a crash": func(t *testing.T, s *Store, _ *File) { must(t, s.Default().ResizeLUN(lunA, size, 3<<20)) },
		"a crash, and garbage": func(t *testing.T, s *Store, f *File) {
			must(t, s.Default().ResizeLUN(lunA, size, 3<<20))
			must(t, f.WriteAt(content(5, 1<<20), 1<<20+4096))
		},
		"appended behind the back": func(t *testing.T, s *Store, _ *File) {
			_, err := imageOf(t, s, lunA).WriteAt(content(5, 2<<20-512), size)
			must(t, err)
		},
	} {
		for _, to := range []int64{2 << 20, 3 << 20, 8 << 20} {
			for _, checked := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, to %d, checksums %v", name, to, checked), func(t *testing.T) {
					dir := t.TempDir()
					opts := Options{}
					if checked {
						opts = withSums()
					}
					s, err := Open(dir, testIdent, opts)
					must(t, err)
					f := newLUN(t, s, lunA, size)
					must(t, errors.Join(f.WriteAt(content(1, size), 0), f.Checkpoint()))
					lengthen(t, s, f)
					must(t, s.Default().ResizeLUN(lunA, size, size)) // nothing to do
					look := func(f *File) {
						t.Helper()
						reads(t, f, 0, append(content(1, size), make([]byte, to-size)...))
						wantWrong(t, f)
					}
					must(t, s.Default().ResizeLUN(lunA, size, to))
					look(f)
					must(t, s.Default().ResizeLUN(lunA, to, to))
					look(f)
					look(openLUN(t, crashed(t, dir, opts), lunA))
					must(t, f.WriteAt(content(2, 4096), to-4096))
					must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close()))
					s = open(t, dir, opts)
					reads(t, openLUN(t, s, lunA), to-4096, content(2, 4096))
				})
			}
		}
	}
}

// The same while the store was not open: what was made of its checksums meanwhile does not count.
func TestGrowWhatWasAppendedTo(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, withSums())
	must(t, err)
	f := newLUN(t, s, lunA, 1<<20)
	must(t, errors.Join(f.WriteAt(content(1, 1<<20), 0), f.Checkpoint(), f.Close(), s.Close()))
	img, err := os.OpenFile(s.Default().folder(kindLUN)+"/"+lunA+imgSuffix, os.O_RDWR, 0)
	must(t, err)
	_, err = img.WriteAt(content(5, 8<<20), 1<<20)
	must(t, errors.Join(err, img.Close()))
	s = open(t, dir, withSums())
	f = openLUN(t, s, lunA)
	must(t, f.Adopt(t.Context()))
	must(t, s.Default().ResizeLUN(lunA, 1<<20, 4<<20))
	reads(t, f, 0, append(content(1, 1<<20), make([]byte, 3<<20)...))
	wantWrong(t, f)
	wantWrong(t, openLUN(t, crashed(t, dir, withSums()), lunA))
}
