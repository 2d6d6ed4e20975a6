package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Hazard 11: a command has a deadline, and its children end with it.
func TestHazard11Commands(t *testing.T) {
	w, dir := worker{root: "/"}, t.TempDir()
	if out, err := w.run(t.Context(), time.Minute, "sh", "-c", "echo out; echo bad >&2"); err != nil || out != "out\n" {
		t.Fatal(out, err)
	}
	_, err := w.run(t.Context(), time.Minute, "sh", "-c", "echo map in use >&2; exit 3")
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != 3 || !errors.Is(err, errExit) || !strings.Contains(err.Error(), "map in use") {
		t.Fatal(err)
	}
	if _, err := w.run(t.Context(), time.Minute, "/no/such/tool"); err == nil || errors.Is(err, errExit) {
		t.Fatal(err)
	}
	pidFile := filepath.Join(dir, "pid")
	begin := time.Now()
	_, err = w.run(t.Context(), 300*time.Millisecond, "sh", "-c", "sleep 20 & echo $! >"+pidFile+"; wait")
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 10*time.Second {
		t.Fatal(err, time.Since(begin))
	}
	raw, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
	if !poll(t.Context(), 10*time.Second, func() bool { return !runs(pid) }) {
		t.Fatal("a child of the command lives on")
	}
	// One that leaves a daemon with its output behind is not waited for.
	if _, err := w.run(t.Context(), time.Minute, "sh", "-c", "sleep 20 & :"); err != nil {
		t.Fatal(err)
	}
	if time.Since(begin) > 15*time.Second {
		t.Fatal(time.Since(begin))
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := w.run(ctx, time.Minute, "sleep", "60"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := bounded(t.Context(), 50*time.Millisecond, "a write", func() error { time.Sleep(time.Second); return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// runs tells whether a process does; one that has ended and waits for its parent does not.
func runs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, after, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(after, "Z")
}
