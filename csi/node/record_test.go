package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After a downgrade, the record of a newer program is not misread: the error names it, and it stays
// unchanged.
func TestRecordOfANewerProgramIsRejected(t *testing.T) {
	n := &unlocked{dir: t.TempDir()}
	if err := n.save(&record{VolumeID: "v1", Staging: "/staging"}); err != nil {
		t.Fatal(err)
	}
	if r, err := n.load("v1"); err != nil || r.Staging != "/staging" {
		t.Fatalf("%+v, %v", r, err)
	}
	newer := `{"version":2,"volumeID":"v2","stagingPath":"/staging"}`
	path := filepath.Join(n.dir, "v2.json")
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := n.load("v2"); err == nil || !strings.Contains(err.Error(), `of volume "v2", version 2: this program knows version 1`) {
		t.Errorf("%+v, %v", r, err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != newer {
		t.Errorf("%s, %v", b, err)
	}
}
