package sums

import (
	"testing"
)

func matches(f *File, first int64, data []byte) bool { return f.Matches(f.Expect(first), first, data) }

// TestAtlasSeesChanges: what is found without a lock is what was put last, by every way in which
// checksums change.
func TestAtlasSeesChanges(t *testing.T) {
	f := openRAM(t, NewCache(0), newRAM(t, testBlocks*BlockSize, true), testBlocks*BlockSize)
	must(t, f.Put(0, block(1)))
	found := func() bool { return matches(f, 0, block(1)) }
	if !found() {
		t.Fatal("a block that was put is not found")
	}
	for name, change := range map[string]func() error{
		"another sum": func() error { return f.Put(0, block(2)) },
		"bad":         func() error { return f.SetBad(0, 1) },
		"zero":        func() error { return f.Zero(0, 1) },
		"a hole":      func() error { return f.Zero(0, zeroPages*pageSums) },
		"a page": func() error {
			return f.Set(0, make([]Sum, pageSums))
		},
	} {
		must(t, f.Put(0, block(1)))
		if !found() {
			t.Errorf("%s: not found before it", name)
		}
		must(t, change())
		if found() {
			t.Errorf("%s: still matches", name)
		}
	}
}

// TestAtlasFollowsTheCache: what the cache has evicted, or a closed file had, is not kept
// alive or found.
func TestAtlasFollowsTheCache(t *testing.T) {
	c := NewCache(0)
	c.limit = 1
	f := openRAM(t, c, newRAM(t, testBlocks*BlockSize, true), testBlocks*BlockSize)
	for n := range int64(testBlocks / pageSums) {
		must(t, f.Get(n*pageSums, make([]Sum, 1)))
	}
	kept := func() (n int64) {
		for _, s := range *f.atlas.sheets.Load() {
			for i := range s {
				if s[i].Load() != nil {
					n++
				}
			}
		}
		return n
	}
	if n, pages := kept(), c.Stats().Pages; n > pages {
		t.Errorf("the atlas has %d pages, the cache %d", n, pages)
	}
	must(t, f.Close())
	if n := kept(); n != 0 {
		t.Errorf("%d pages of a closed file", n)
	}
	if matches(f, 0, make([]byte, BlockSize)) {
		t.Error("a closed file finds a page")
	}
}

// TestAtlasDoesNotAdopt: beyond what is adopted zero means unknown, also for a page in the atlas.
func TestAtlasDoesNotAdopt(t *testing.T) {
	f := openRAM(t, NewCache(0), newRAM(t, testBlocks*BlockSize, false), testBlocks*BlockSize)
	must(t, f.Put(0, block(1)))
	if matches(f, 1, make([]byte, BlockSize)) || matches(f, 0, append(block(1), make([]byte, BlockSize)...)) {
		t.Error("a block that was never adopted is taken for zeroes")
	}
}

// TestAtlasGrows: a page past the end that the LUN had when the first one was kept.
func TestAtlasGrows(t *testing.T) {
	const size = 3 * sheetPages * pageSums * BlockSize
	f := openRAM(t, NewCache(0), newRAM(t, BlockSize, true), BlockSize)
	must(t, f.Put(0, block(1)))
	must(t, f.Grow(size))
	last := int64(size/BlockSize - 1)
	must(t, f.Put(last, block(2)))
	if !matches(f, 0, block(1)) || !matches(f, last, block(2)) {
		t.Error("a page is not found after the LUN has grown")
	}
}

// TestAtlasOfEachFile: two files with the same page number, in one cache.
func TestAtlasOfEachFile(t *testing.T) {
	c := NewCache(0)
	var files []*File
	for n := range uint32(200) {
		f := openRAM(t, c, newRAM(t, testBlocks*BlockSize, true), testBlocks*BlockSize)
		must(t, f.Put(0, block(n+1)))
		files = append(files, f)
	}
	found := 0
	for n, f := range files {
		if matches(f, 0, block(uint32(n+2))) {
			t.Errorf("file %d matches the block of another one", n)
		}
		if matches(f, 0, block(uint32(n+1))) {
			found++
		}
	}
	if found != len(files) {
		t.Errorf("%d of %d pages are found", found, len(files))
	}
}
