package pair

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/exits"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// failWrites makes the kernel refuse what a node writes beyond limit bytes of a file (EFBIG), as a
// disk with a bad end does.
func failWrites(t *testing.T, p *harness.Pair, i int, limit uint64) {
	t.Helper()
	if err := unix.Prlimit(p.PID(i), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: unix.RLIM_INFINITY}, nil); err != nil {
		t.Fatal(err)
	}
}

// The disk of a node fails under load: its process ends with its own exit code, the supervisor
// starts it again, and everything is copied without an administrator.
func TestNodeWhoseDiskFailsComesBackByItself(t *testing.T) {
	words := [2]string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
	p, ctx := startWith(t, func(o *harness.Options) {
		o.Supervised = true
		for i := range words {
			if err := os.WriteFile(words[i], nil, 0o600); err != nil {
				t.Fatal(err)
			}
			o.PerNode[i] = []string{"--termination-message-path", words[i]}
		}
	})
	for i, name := range harness.Names {
		_, m := createLUN(t, ctx, p, 32<<20, name)
		l := startLoad(ctx, open(t, ctx, m), 8, 2048)
		l.more(t, ctx, 500)
		l.pauseSince()
		failWrites(t, p, i, 4<<20)
		l.more(t, ctx, 500)
		if err := harness.Wait(ctx, "node "+name+" has ended", func() (bool, string) { return len(p.Exits(i)) > 0, fmt.Sprint(p.Exits(i)) }); err != nil {
			t.Fatal(err)
		}
		if err := p.WaitInSync(ctx); err != nil {
			t.Fatal(err)
		}
		l.more(t, ctx, 500)
		t.Logf("node %s: longest write %v, exits %v", name, l.pauseSince(), p.Exits(i))
		if got := p.Exits(i); !slices.Equal(got, []int{exits.Left}) {
			t.Errorf("node %s ended with %v", name, got)
		}
		said, err := os.ReadFile(words[i])
		if err != nil || !strings.Contains(string(said), "the store failed") || !strings.Contains(string(said), "check the disk") {
			t.Errorf("last words of node %s: %q, %v", name, said, err)
		}
		if log, err := os.ReadFile(p.LogFile(i)); err != nil || !strings.Contains(string(log), "gemel-target: this node has stopped serving") {
			t.Errorf("node %s: its last line is not on stderr, %v", name, err)
		}
		finishLoad(t, ctx, l, m)
	}
}

// A disk that stays broken: the node ends and is started again repeatedly. Hosts continue at the
// other node, and when the disk works everything is copied.
func TestDiskThatIsBrokenForGood(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	script := filepath.Join(dir, "target")
	p, ctx := startWith(t, func(o *harness.Options) {
		o.Supervised = true
		text := fmt.Sprintf("#!/bin/sh\nif [ -e %s ]; then ulimit -f 6000; fi\nexec %s \"$@\"\n", broken, o.Binary) // 3 MiB, or 6 with another shell
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		o.Programs[1] = script
	})
	lun, m := createLUN(t, ctx, p, 32<<20, "a")
	l := startLoad(ctx, open(t, ctx, m), 8, 2048)
	l.more(t, ctx, 500)
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failWrites(t, p, 1, 4<<20)
	const lives = 4
	if err := harness.Wait(ctx, "it has ended some times", func() (bool, string) { return len(p.Exits(1)) >= lives, fmt.Sprint(p.Exits(1)) }); err != nil {
		t.Fatal(err)
	}
	l.pauseSince()
	l.more(t, ctx, 2000)
	if pause := l.pauseSince(); pause > 2*time.Second {
		t.Errorf("a host waits for %v beside a node that ends again and again", pause)
	}
	if len(p.Exits(0)) != 0 {
		t.Errorf("node a ended: %v", p.Exits(0))
	}
	if got := p.Exits(1); slices.ContainsFunc(got, func(c int) bool { return c != exits.Left }) {
		t.Errorf("exits %v", got)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("exits %v", p.Exits(1))
	finish(t, ctx, p, l, lun, m)
}
