// Package sanity tests the real CSI plugin against a real pair: with the conformance suite of the
// specification, with the calls of a kubelet, and with crashes.
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

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
	"github.com/gemel-storage/gemel/internal/testkit/plugin"
)

var targetBinary, csiBinary string

// races is where the race detector of plugin and holders writes.
var races string

const dirPrefix = "gs-" // short: a socket's address has 107 bytes

// sweep removes what a killed run left behind: holders outlive all other processes by design. A
// folder that a running test holds locked stays.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, d := range dirs {
		f, err := os.Open(d)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			p, err := plugin.New(plugin.Options{Dir: d, Binary: "none"})
			if err == nil {
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				found, err := p.Purge(ctx)
				fmt.Fprintf(os.Stderr, "an earlier run left in %s: %q (%v)\n", d, found, err)
				cancel()
				if err == nil {
					_ = os.RemoveAll(d)
				}
			}
		}
		_ = f.Close()
	}
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gemel-sanity-")
	if err != nil {
		panic(err)
	}
	if os.Geteuid() == 0 {
		sweep()
		races = filepath.Join(dir, "race")
		_ = os.Setenv("GORACE", "log_path="+races)
		// Under the race detector plugin and holder run under it as well: a race ends them with an
		// error.
		targetBinary, err = harness.Build(context.Background(), dir, "./cmd/gemel-target")
		if err == nil {
			csiBinary, err = harness.Build(context.Background(), dir, "./cmd/gemel-csi", raceFlags...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if found, _ := filepath.Glob(races + ".*"); races != "" && len(found) > 0 {
		for _, f := range found {
			b, _ := os.ReadFile(f)
			fmt.Fprintf(os.Stderr, "%s\n", b)
		}
		code = 1
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

type env struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	pair   *harness.Pair
	pair2  *harness.Pair // with the objects backend
	plugin *plugin.Plugin
	ids    []string      // of the volumes that were made
	api    client.Client // with the objects backend
	cfg    *rest.Config  // with the objects backend

	operator *operator.Operator                     // with the objects backend
	restart  func(enroll string) *operator.Operator // runs one in place of e.operator, which was stopped
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
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	})
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
	o := plugin.Options{Dir: dir, Binary: csiBinary, PairEndpoints: e.pair.Control[:], Args: args}
	if os.Getenv(backendVariable) == "objects" {
		o.PairEndpoints, o.Args = nil, append(e.operate(), args...)
	}
	e.plugin, err = plugin.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.cleanup)
	if err := e.plugin.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if e.api != nil {
		e.enrolled()
	}
	return e
}

func tail(b []byte) string { return string(b[max(0, len(b)-16<<10):]) }

// cleanup ends the plugin and removes what a failed test left behind; a passed test that left
// anything behind is an error.
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
	if left := e.loops(); len(left) > 0 {
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

// loops lists loop devices whose file is in the folder, or was in a mount there that is gone: then
// the kernel shows its name only.
func (e *env) loops() (out []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		ours := strings.HasPrefix(string(b), e.dir)
		for _, id := range e.ids {
			ours = ours || strings.HasPrefix(string(b), "/"+id+".")
		}
		if ours {
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
