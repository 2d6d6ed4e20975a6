package memlimit

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// The test's binary is a process in a container when the environment says so: it prints its limit,
// and again whenever a line is sent to it.
func TestMain(m *testing.M) {
	if os.Getenv("MEMLIMIT_TEST") == "" {
		os.Exit(m.Run())
	}
	f := follower{log: slog.New(slog.DiscardHandler), own: debug.SetMemoryLimit(-1), read: memlimit.FromCgroup}
	for {
		f.once()
		fmt.Println(debug.SetMemoryLimit(-1))
		if n, err := os.Stdin.Read(make([]byte, 1)); n == 0 || err != nil {
			return
		}
	}
}

func TestOfLeavesATenthOfTheLimit(t *testing.T) {
	for limit, want := range map[int64]int64{0: 0, 10: 9, 1 << 30: 966367641, math.MaxInt64: 8301034833169298226} {
		if got := Of(limit); got != want {
			t.Errorf("of %d: %d, not %d", limit, got, want)
		}
	}
}

// The limit goes up and down with the container's, GOMEMLIMIT holds below it, and what cannot be
// read changes nothing and is said once.
func TestLimitFollowsTheContainer(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	var said bytes.Buffer
	const own = 700 << 20
	now, failure := uint64(0), error(nil)
	f := follower{log: slog.New(slog.NewTextHandler(&said, nil)), own: own, read: func() (uint64, error) { return now, failure }}
	broken := errors.New("broken")
	for i, x := range []struct {
		limit uint64
		err   error
		want  int64
		said  string
	}{
		{512 << 20, nil, Of(512 << 20), "container=536870912"},
		{512 << 20, nil, Of(512 << 20), ""}, // nothing has changed
		{256 << 20, nil, Of(256 << 20), "container=268435456"},
		{0, broken, Of(256 << 20), "broken"},
		{0, broken, Of(256 << 20), ""},
		{4 << 30, nil, own, "bytes=734003200"},
		{512 << 20, nil, Of(512 << 20), "from the container's limit"},
		{0, memlimit.ErrNoLimit, own, "from the container's limit"},
		{0, memlimit.ErrNoCgroup, own, ""},
		{math.MaxUint64, nil, own, ""},
	} {
		said.Reset()
		now, failure = x.limit, x.err
		f.once()
		if got := debug.SetMemoryLimit(-1); got != x.want {
			t.Errorf("%d: %d, not %d", i, got, x.want)
		}
		if got := said.String(); (x.said == "") != (got == "") || !strings.Contains(got, x.said) {
			t.Errorf("%d: it says %q, without %q", i, got, x.said)
		}
	}
}

// A process in a real cgroup gets 90 % of its limit, also of one that is changed while it runs, and
// less if GOMEMLIMIT says so.
func TestFollowsACgroup(t *testing.T) {
	dir, file := memoryGroup(t)
	set := func(limit int64) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
			t.Fatal(err)
		}
	}
	for env, want := range map[string][2]int64{"": {Of(256 << 20), Of(128 << 20)}, "200MiB": {200 << 20, Of(128 << 20)}} {
		set(256 << 20)
		// The shell joins the group before the program begins: its memory counts from the start.
		cmd := exec.Command("sh", "-c", `echo $$ >"$1/cgroup.procs" && exec "$2"`, "sh", dir, os.Args[0])
		cmd.Env = append(os.Environ(), "MEMLIMIT_TEST=1", "GOMEMLIMIT="+env)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			var got int64
			if _, err := fmt.Fscanln(out, &got); err != nil || got != want[i] {
				t.Errorf("GOMEMLIMIT=%q: %d, not %d (%v)", env, got, want[i], err)
			}
			set(128 << 20)
			if _, err := in.Write([]byte{'x'}); err != nil {
				t.Error(err)
			}
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fscanln(out, new(int64))
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// memoryGroup makes a cgroup of either version, and names the file of its limit.
func memoryGroup(t *testing.T) (dir, file string) {
	t.Helper()
	var failed error
	for _, c := range [][2]string{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(c[0], "gemel-memlimit-"+strconv.Itoa(os.Getpid()))
		if failed = os.Mkdir(dir, 0o755); failed != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Errorf("memory cgroup: %v", err)
			}
		})
		if failed = os.WriteFile(filepath.Join(dir, c[1]), []byte("268435456"), 0); failed == nil {
			return dir, c[1]
		}
	}
	t.Skipf("needs a memory cgroup that can be written: %v", failed)
	return "", ""
}
