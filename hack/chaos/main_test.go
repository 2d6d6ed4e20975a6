package main

import (
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/e2e/chaos"
)

// What can not be run is said before anything is made.
func TestArguments(t *testing.T) {
	out := t.TempDir() + "/chaos.json"
	if err := run(t.Context(), chaos.Config{}, "", out); err == nil || !strings.Contains(err.Error(), "-duration") {
		t.Error(err)
	}
	if err := run(t.Context(), chaos.Config{Duration: time.Second}, "kill,earthquake", out); err == nil || !strings.Contains(err.Error(), `"earthquake"`) {
		t.Error(err)
	}
}
