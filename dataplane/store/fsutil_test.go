package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gemel-storage/gemel/internal/fd"
	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

// A file that is there tells of its filesystem what a clone would, whatever it holds.
func TestSharedExtentsWithoutSpace(t *testing.T) {
	check := func(t *testing.T, dir string) {
		want, err := tryReflink(dir)
		must(t, err)
		for name, content := range map[string]string{"empty": "", "short": "x", "blocks": string(make([]byte, 3*4096))} {
			path := filepath.Join(dir, name)
			must(t, os.WriteFile(path, []byte(content), 0o600))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			if err := fd.With(f, sharesExtents); (err == nil) != want {
				t.Errorf("%s: %v, a clone says %v", name, err, want)
			}
			must(t, f.Close())
			if raw, err := os.ReadFile(path); err != nil || string(raw) != content {
				t.Errorf("%s has changed: %v", name, err)
			}
		}
	}
	t.Run("here", func(t *testing.T) { check(t, t.TempDir()) })
	t.Run("XFS", func(t *testing.T) { check(t, reflinked.Dir(t, 300<<20)) })
}
