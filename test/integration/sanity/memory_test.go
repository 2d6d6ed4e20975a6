package sanity

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A target and a holder serve volumes of their own machine: their memory is locked, and with the
// privilege they do not wait for block I/O.
func TestHazard30Resident(t *testing.T) {
	e := start(t, 2*time.Minute)
	v := e.create("resident", 16*mib, raw(writer), nil).up()
	ours, err := os.ReadFile("/proc/self/status")
	e.ok(err)
	bits, err := strconv.ParseUint(statusOf(string(ours), "CapEff"), 16, 64)
	e.ok(err)
	flusher := bits&(1<<unix.CAP_SYS_RESOURCE) != 0
	if !flusher {
		t.Log("I/O flushers are not looked for: this machine gives no CAP_SYS_RESOURCE")
	}
	for name, pid := range map[string]int{"holder": v.holder(), "node a": e.pair.PID(0), "node b": e.pair.PID(1)} {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		raw, err := os.ReadFile(filepath.Join(proc, "status"))
		e.ok(err)
		if locked := statusOf(string(raw), "VmLck"); locked == "0" || locked == "" {
			t.Errorf("%s: nothing is locked", name)
		}
		threads, err := filepath.Glob(filepath.Join(proc, "task", "*", "stat"))
		e.ok(err)
		for _, f := range threads {
			raw, err := os.ReadFile(f)
			if err != nil {
				continue // it has ended
			}
			_, rest, _ := strings.Cut(string(raw), ") ")
			flags, err := strconv.ParseUint(strings.Fields(rest)[6], 10, 64)
			e.ok(err)
			const both = 0x00080000 | 0x00100000 // PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE of the kernel's linux/sched.h
			if flusher && flags&both != both {
				t.Errorf("%s: thread %s is no I/O flusher: %#x", name, f, flags)
			}
		}
	}
	v.down()
}

// statusOf is a field of proc's status, without its unit.
func statusOf(text, key string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB"))
		}
	}
	return ""
}

// A pod writes more than its memory holds to a volume whose owner is on the same machine: processes
// that need memory for it handle each write, and all data arrives.
func TestHazard30MemoryPressure(t *testing.T) {
	e := start(t, 4*time.Minute)
	group := memoryGroup(t, 48*mib)
	v := e.create("pressed", 1024*mib, mounted("xfs"), nil).up()
	before, err := e.pair.Status(e.ctx, 0)
	e.ok(err)
	const lines = 25_000_000 // 217 MiB
	file := filepath.Join(v.target, "numbers")
	began := time.Now()
	script := `echo $$ >"$1/cgroup.procs" && seq 1 "$2" >"$3" && sync "$3"`
	if out, err := exec.CommandContext(e.ctx, "sh", "-c", script, "sh", group.dir, strconv.Itoa(lines), file).CombinedOutput(); err != nil {
		t.Fatalf("the writer: %v: %s", err, out)
	}
	hits := group.hits(t)
	t.Logf("written in %v with %d MiB; the limit was hit %d times", time.Since(began).Round(time.Millisecond), 48, hits)
	if hits == 0 {
		t.Error("the writer had enough memory: this shows nothing")
	}
	// The data is read from the disks: none of it may come from memory.
	f, err := os.Open(file)
	e.ok(err)
	e.ok(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	e.ok(f.Close())
	if out, err := exec.CommandContext(e.ctx, "sh", "-c", `seq 1 "$1" | cmp - "$2"`, "sh", strconv.Itoa(lines), file).CombinedOutput(); err != nil {
		t.Fatalf("the written data is missing: %v: %s", err, out)
	}
	if h := v.health(); len(h) != 0 {
		t.Errorf("health %v", h)
	}
	e.ok(e.pair.WaitInSync(e.ctx))
	after, err := e.pair.Status(e.ctx, 0)
	e.ok(err)
	t.Logf("epoch %d, then %d", before.Epoch, after.Epoch)
	v.down()
}

// cgroup limits the memory of what is put into it.
type cgroup struct {
	dir   string
	count string // file that counts how often the limit was hit
}

// memoryGroup makes one, of either version.
func memoryGroup(t *testing.T, limit int64) cgroup {
	t.Helper()
	var failed error
	for _, c := range []struct{ root, limit, count string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.failcnt"},
		{"/sys/fs/cgroup", "memory.max", "memory.events"},
	} {
		dir := filepath.Join(c.root, "gemel-test-"+strconv.Itoa(os.Getpid()))
		if failed = os.Mkdir(dir, 0o755); failed != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Errorf("memory cgroup: %v", err)
			}
		})
		if failed = os.WriteFile(filepath.Join(dir, c.limit), []byte(strconv.FormatInt(limit, 10)), 0); failed == nil {
			return cgroup{dir, filepath.Join(dir, c.count)}
		}
	}
	t.Skipf("needs a memory cgroup that can be written: %v", failed)
	return cgroup{}
}

// hits of the limit: a number, or the line "max N" among others.
func (c cgroup) hits(t *testing.T) (n int) {
	t.Helper()
	raw, err := os.ReadFile(c.count)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) == 1 || len(f) == 2 && f[0] == "max" {
			n, err = strconv.Atoi(f[len(f)-1])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}
