package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/chaos"
)

// Wrong arguments are refused before anything is started.
func TestWrongArgumentsAreRefused(t *testing.T) {
	out := t.TempDir() + "/chaos.json"
	if err := run(t.Context(), chaos.Config{}, "", out); err == nil || !strings.Contains(err.Error(), "-duration") {
		t.Error(err)
	}
	if err := run(t.Context(), chaos.Config{Duration: time.Second}, "kill,earthquake", out); err == nil || !strings.Contains(err.Error(), `"earthquake"`) {
		t.Error(err)
	}
}

// An interrupted run is printed and written like any other run, and is an error.
func TestInterruptedRunIsReported(t *testing.T) {
	out := t.TempDir() + "/chaos.json"
	var text bytes.Buffer
	rep := &chaos.Report{Seed: 7, Operations: 5, Interrupted: "interrupted after 3.0 s"}
	err := tell(&text, out, rep, fmt.Errorf("%w after 3.0 s", chaos.ErrInterrupted))
	if !errors.Is(err, chaos.ErrInterrupted) || !strings.Contains(text.String(), "interrupted after 3.0 s") {
		t.Errorf("%v\n%s", err, text.String())
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var got chaos.Report
	if err := json.Unmarshal(b, &got); err != nil || got.Seed != 7 || got.Interrupted != rep.Interrupted || got.Passed {
		t.Errorf("%v %s", err, b)
	}
	out = t.TempDir() + "/none.json"
	if err := tell(&text, out, nil, errors.New("setting up: no")); err == nil {
		t.Error("a run that could not be set up is no error")
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Error("a report of nothing is written")
	}
}
