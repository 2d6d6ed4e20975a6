package userspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// After a downgrade, the record of a newer program is not misread: the error names it.
func TestRecordOfANewerProgramIsRejected(t *testing.T) {
	dir := t.TempDir()
	for version := 1; version <= attach.MaxRecordVersion; version++ {
		if err := (&record{Version: version, File: "f"}).save(dir); err != nil {
			t.Fatal(err)
		}
		if r, err := loadRecord(dir); err != nil || r.File != "f" {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), []byte(`{"version":3,"file":"f"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := loadRecord(dir); err == nil || !strings.Contains(err.Error(), "has version 3, this program knows 2") {
		t.Errorf("%+v, %v", r, err)
	}
}
