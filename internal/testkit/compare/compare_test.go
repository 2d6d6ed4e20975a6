package compare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stores makes two equal stores, one with holes where the other has zeroes.
func stores(t *testing.T) (a, b string) {
	t.Helper()
	for i, dir := range []*string{&a, &b} {
		*dir = t.TempDir()
		for _, f := range Folders {
			if err := os.MkdirAll(filepath.Join(*dir, f), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []string{Folders[0] + "/one.img", Folders[0] + "/two.img", Folders[1] + "/s.img"} {
			f, err := os.Create(filepath.Join(*dir, n))
			if err != nil {
				t.Fatal(err)
			}
			put := func(s string, off int64) {
				if _, err := f.WriteAt([]byte(s), off); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Truncate(40 << 20); err != nil {
				t.Fatal(err)
			}
			put(strings.Repeat("data of "+n, 1000), 3<<20)
			put("the end", 40<<20-7)
			if i == 1 {
				put(strings.Repeat("\x00", 1<<20), 20<<20)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return a, b
}

func compared(t *testing.T, a, b string) []Image {
	t.Helper()
	list, err := Stores(t.Context(), a, b, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestEqualStores(t *testing.T) {
	a, b := stores(t)
	list := compared(t, a, b)
	if len(list) != 3 || !Identical(list) {
		t.Fatalf("%+v", list)
	}
	for _, im := range list {
		if im.Compared < 1<<20 || im.Size != 40<<20 {
			t.Errorf("%+v", im)
		}
	}
}

func TestDifferencesOfImagesAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(dir string) error
		reason string
	}{
		"a byte": {func(dir string) error {
			_, err := Corrupt(dir)
			return err
		}, "differs"},
		"the last byte":               {func(dir string) error { return patch(dir, 40<<20-1, "D") }, "byte 41943039 differs"},
		"data in a hole of the other": {func(dir string) error { return patch(dir, 30<<20, "x") }, "byte 31457280 differs"},
		"size":                        {func(dir string) error { return os.Truncate(filepath.Join(dir, Folders[0], "one.img"), 41<<20) }, "sizes differ"},
		"missing":                     {func(dir string) error { return os.Remove(filepath.Join(dir, Folders[1], "s.img")) }, "only one node"},
	} {
		for side := range 2 {
			a, b := stores(t)
			if err := c.spoil([]string{a, b}[side]); err != nil {
				t.Fatal(err)
			}
			list := compared(t, a, b)
			bad := 0
			for _, im := range list {
				if !im.Identical {
					bad++
					if !strings.Contains(im.Reason, c.reason) {
						t.Errorf("%s: reason %q", name, im.Reason)
					}
				}
			}
			if bad != 1 || Identical(list) {
				t.Errorf("%s on side %d: %d images differ: %+v", name, side, bad, list)
			}
		}
	}
}

func TestNothingIsNotIdentical(t *testing.T) {
	if Identical(nil) {
		t.Error("a comparison of nothing must not pass")
	}
}

func patch(dir string, off int64, s string) error {
	f, err := os.OpenFile(filepath.Join(dir, Folders[0], "two.img"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte(s), off)
	return err
}
