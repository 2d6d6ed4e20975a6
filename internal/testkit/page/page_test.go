package page

import (
	"os"
	"strings"
	"testing"
)

func TestSteps(t *testing.T) {
	steps, err := Steps("without-gemel.md")
	if err != nil || !strings.HasPrefix(steps["luns"], "cd ") || strings.Contains(steps["luns"], "```") || !strings.Contains(steps["join"], "mount -o ro,loop") {
		t.Errorf("%v, %v", steps, err)
	}
	if _, err := Steps("README.md"); err == nil {
		t.Error("a page without steps has some")
	}
	if _, err := Steps("no-such-page.md"); !os.IsNotExist(err) {
		t.Error(err)
	}
}
