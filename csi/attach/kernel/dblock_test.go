package kernel

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lockedDB is a worker whose database of open-iscsi is locked, with one process in its proc: a
// name, and when it was started.
func lockedDB(t *testing.T, name string, start time.Duration) *linux {
	t.Helper()
	root := t.TempDir()
	l := &linux{worker: worker{root: root, proc: filepath.Join(root, "proc/1")}}
	lock := l.path(dbLock)
	stat := filepath.Join(root, "proc/77/stat")
	for _, f := range []string{lock, stat} {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Appendf(nil, "77 (%s) S %s%d%s\n", name, strings.Repeat("0 ", 18), start/(10*time.Millisecond), strings.Repeat(" 0", 30))
	first := filepath.Join(filepath.Dir(lock), "lock")
	for _, err := range []error{os.WriteFile(stat, text, 0o600), os.WriteFile(first, nil, 0o600), os.Link(first, lock)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// Hazard 11: who was killed with open-iscsi's database locked does not keep everybody else from
// logging in and out.
func TestHazard11LockLeftBehind(t *testing.T) {
	node := nodeRecord{target: "iqn.2026-11.storage.gemel:c.p", portal: netip.MustParseAddrPort("10.0.0.1:3260")}
	t.Run("by a process that is gone", func(t *testing.T) {
		t.Parallel()
		l := lockedDB(t, "iscsid", 0)
		calls := entered(t, l, "test ! -e "+l.path(dbLock))
		if err := l.login(t.Context(), node); err != nil || !strings.Contains(calls(), "--login") {
			t.Fatal(err, calls())
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(l.path(dbLock)), "lock")); err != nil {
			t.Error(err)
		}
	})
	t.Run("while another waits for it", func(t *testing.T) {
		t.Parallel()
		l := lockedDB(t, "iscsiadm", 100*365*24*time.Hour)
		calls := entered(t, l, "test ! -e "+l.path(dbLock))
		if err := l.login(t.Context(), node); err != nil {
			t.Fatal(err, calls())
		}
	})
	t.Run("not by one that still works", func(t *testing.T) {
		t.Parallel()
		l := lockedDB(t, "iscsiadm", 0)
		entered(t, l, "test -e "+l.path(dbLock))
		if err := l.login(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("not by one a moment ago", func(t *testing.T) {
		t.Parallel()
		l := lockedDB(t, "iscsid", 0)
		done := make(chan error, 1)
		go func() { done <- l.freeDB(t.Context()) }()
		for begin := time.Now(); time.Since(begin) < staleAfter/2; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(l.path(dbLock)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(l.path(dbLock)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// Hazard 11: who waits in vain for iscsid learns whom to restart.
func TestHazard11DaemonHangs(t *testing.T) {
	t.Parallel()
	l := &linux{worker: worker{root: t.TempDir()}}
	entered(t, l, "exec sleep 60")
	if err := l.login(t.Context(), nodeRecord{}); err == nil || !strings.Contains(err.Error(), "systemctl restart iscsid") {
		t.Fatal(err)
	}
}
