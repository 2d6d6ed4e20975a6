package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Only what no kernel would mount is wiped.
func TestWipeUnfinishedWipesOnlyIncompleteXFS(t *testing.T) {
	image := func(magic string, inProgress byte) []byte {
		b := bytes.Repeat([]byte{0x5a}, 16<<10)
		copy(b, magic)
		b[xfsInProgress] = inProgress
		return b
	}
	for name, c := range map[string]struct {
		content []byte
		wiped   bool
	}{
		"interrupted":     {image("XFSB", 1), true},
		"finished":        {image("XFSB", 0), false},
		"of another kind": {image("\x00\x00\x00\x00", 1), false},
		"short":           {[]byte("XFSB"), false},
		"nothing":         {nil, false},
	} {
		path := filepath.Join(t.TempDir(), "device")
		if err := os.WriteFile(path, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		wiped, err := wipeUnfinished(path)
		if err != nil || wiped != c.wiped {
			t.Errorf("%s: %v, %v", name, wiped, err)
		}
		want := bytes.Clone(c.content)
		if c.wiped {
			clear(want[:4096])
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the content is not right (%v)", name, err)
		}
	}
	if _, err := wipeUnfinished(filepath.Join(t.TempDir(), "gone")); err == nil {
		t.Error("no error without a device")
	}
	// If reads fail, as of a LUN that may have lost acknowledged writes, the error names the
	// remedy.
	if _, err := wipeUnfinished("/proc/self/mem"); !errors.Is(err, attach.ErrFailed) || !strings.Contains(err.Error(), "VolumeAttachment") {
		t.Error(err)
	}
}
