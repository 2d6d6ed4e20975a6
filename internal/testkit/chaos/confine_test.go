package chaos

import (
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A command that is wrapped becomes the program, and has the memory that a node has.
func TestConfinedCommandHasANodesMemory(t *testing.T) {
	c, why := confine()
	if why != nil {
		t.Log("no memory cgroups here: ", why)
	}
	for i := range c.dirs {
		args := append(c.wrap(i), "sh", "-c", `echo $$; cat /proc/$$/cgroup; echo "limit $GOMEMLIMIT"`)
		cmd := exec.Command(args[0], args[1:]...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		pid, rest, _ := strings.Cut(string(out), "\n")
		want := "limit 483183820"
		if why == nil {
			want = c.dirs[i][strings.LastIndex(c.dirs[i], "/"):]
		}
		if pid != strconv.Itoa(cmd.Process.Pid) || !strings.Contains(rest, want) {
			t.Errorf("process %d is %s, in %s, which has nothing of %q", cmd.Process.Pid, pid, rest, want)
		}
	}
	dirs := c.dirs
	if err := c.close(); err != nil {
		t.Error(err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); d != "" && err == nil {
			t.Errorf("%s is left", d)
		}
	}
}

func TestPeakOfResidentMemory(t *testing.T) {
	debug.FreeOSMemory() // what earlier tests have left is not given back while this test measures
	pid := os.Getpid()
	if err := forgetPeak(pid); err != nil {
		t.Fatal(err)
	}
	before, err := peak(pid)
	if err != nil {
		t.Fatal(err)
	}
	// Pages from the kernel: the heap may hold as many from earlier tests, and would grow by
	// nothing.
	b, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	after, err := peak(pid)
	if err != nil || after < before+int64(len(b))/2 {
		t.Errorf("%d bytes at most, then %d with %d more (%v)", before, after, len(b), err)
	}
	if _, err := peakIn("Name:\tsh\nState:\tZ (zombie)\n"); err == nil {
		t.Error("a process that has ended has a size")
	}
}

func TestOverBudget(t *testing.T) {
	if most := overBudget(usage{sessions: 10, used: 110 << 20, limit: 100 << 20}); most != 0 {
		t.Errorf("%.0f", most)
	}
	if most := overBudget(usage{sessions: 10, used: 111 << 20, limit: 100 << 20}); most != 110<<20 {
		t.Errorf("%.0f", most)
	}
}
