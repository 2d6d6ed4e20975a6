// Package sanity tests the real CSI plugin against a real pair: the specification's conformance suite, and what a
// kubelet and a crash would do to it.
package sanity

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/e2e/harness"
	"github.com/gemel-storage/gemel/e2e/plugin"
)

var targetBinary, csiBinary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gemel-sanity-")
	if err != nil {
		panic(err)
	}
	if os.Geteuid() == 0 {
		for pkg, path := range map[string]*string{"./cmd/gemel-target": &targetBinary, "./cmd/gemel-csi": &csiBinary} {
			if *path, err = harness.Build(context.Background(), dir, pkg); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

type env struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	pair   *harness.Pair
	plugin *plugin.Plugin
}

// start brings pair and plugin up, and checks at the end that nothing is left.
func start(t *testing.T, limit time.Duration, args ...string) *env {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts filesystems and binds loop devices")
	}
	for _, p := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(p); err != nil {
			t.Skipf("needs %s: %v", p, err)
		}
	}
	for _, c := range []string{"mkfs.xfs", "xfs_growfs", "mkfs.ext4", "e2fsck", "resize2fs", "dumpe2fs", "blkid", "mount"} {
		if _, err := exec.LookPath(c); err != nil {
			t.Skipf("needs the command %s (Debian: xfsprogs, e2fsprogs, util-linux)", c)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	// Short: a socket's address has 107 bytes.
	dir, err := os.MkdirTemp("", "gs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := &env{t: t, ctx: ctx, dir: dir}
	e.pair, err = harness.New(harness.Options{Dir: filepath.Join(dir, "pair"), Binary: targetBinary})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.pair.Close(); err != nil {
			t.Errorf("stop of the pair: %v", err)
		}
		if t.Failed() {
			for i, n := range harness.Names {
				b, _ := os.ReadFile(e.pair.LogFile(i))
				t.Logf("log of node %s:\n%s", n, tail(b))
			}
		}
	})
	if err := e.pair.Start(ctx); err != nil {
		t.Fatal(err)
	}
	e.plugin, err = plugin.New(plugin.Options{Dir: dir, Binary: csiBinary, PairEndpoints: e.pair.Control[:], Args: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.cleanup)
	if err := e.plugin.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return e
}

func tail(b []byte) string { return string(b[max(0, len(b)-16<<10):]) }

// cleanup ends the plugin and takes away what a failed test left; what a passed one left is an error.
func (e *env) cleanup() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := e.plugin.Close(); err != nil {
		e.t.Errorf("stop of the plugin: %v", err)
	}
	found, err := e.plugin.Purge(ctx)
	if err != nil {
		e.t.Errorf("purge: %v", err)
	}
	if len(found) > 0 && !e.t.Failed() {
		e.t.Errorf("left behind: %q", found)
	}
	if left := loopsBelow(e.dir); len(left) > 0 {
		e.t.Errorf("loop devices left: %q", left)
	}
	if left := holdersBelow(e.dir); len(left) > 0 {
		e.t.Errorf("holders left: %q", left)
	}
	if e.t.Failed() {
		b, _ := os.ReadFile(e.plugin.LogFile())
		e.t.Logf("log of the plugin:\n%s", tail(b))
	}
}

// loopsBelow lists loop devices whose file is in the folder.
func loopsBelow(dir string) (out []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if strings.HasPrefix(string(b), dir) {
			out = append(out, f)
		}
	}
	return out
}

// holdersBelow lists processes that serve an attachment in the folder.
func holdersBelow(dir string) (out []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if s := string(b); strings.Contains(s, "attach-holder") && strings.Contains(s, dir) {
			out = append(out, f)
		}
	}
	return out
}
