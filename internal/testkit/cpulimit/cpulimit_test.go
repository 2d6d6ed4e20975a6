package cpulimit

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

// A process that would use a whole processor is stopped for most of the time, until the limit is
// taken away; the group is gone afterwards.
func TestLimit(t *testing.T) {
	g, err := New("gemel-cpulimit-test")
	if errors.Is(err, ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := g.Wrap()
	cmd := exec.CommandContext(t.Context(), w[0], append(w[1:], "/bin/sh", "-c", "while :; do :; done")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := func(what string, processors float64, enough func(time.Duration) bool) {
		t.Helper()
		if err := g.Limit(processors); err != nil {
			t.Fatal(err)
		}
		before, err := g.Throttled()
		if err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			now, err := g.Throttled()
			if err != nil {
				t.Fatal(err)
			}
			if enough(now - before) {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("%s: stopped for %v", what, now-before)
			}
		}
	}
	stopped("a fifth of a processor", 0.2, func(d time.Duration) bool { return d > 200*time.Millisecond })
	stopped("without a limit", 0, func(d time.Duration) bool { return d < 50*time.Millisecond })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}
