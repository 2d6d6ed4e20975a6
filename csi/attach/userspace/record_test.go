package userspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After a downgrade, the record of a newer program is not misread: the error names it.
func TestRecordOfANewerProgramIsRejected(t *testing.T) {
	dir := t.TempDir()
	if err := (&record{Version: 1, File: "f"}).save(dir); err != nil {
		t.Fatal(err)
	}
	if r, err := loadRecord(dir); err != nil || r.File != "f" {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), []byte(`{"version":2,"file":"f"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := loadRecord(dir); err == nil || !strings.Contains(err.Error(), "has version 2, this program knows 1") {
		t.Errorf("%+v, %v", r, err)
	}
}
