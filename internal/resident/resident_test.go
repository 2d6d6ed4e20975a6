package resident

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The test's binary is a process to look at when the environment says so.
func TestMain(m *testing.M) {
	switch os.Getenv("RESIDENT_TEST") {
	case "become":
		err := BecomeFlusher()
		fmt.Println(os.Args[1:], flushers(), err)
	case "child":
		fmt.Println(flushers())
	case "limited":
		// As high as may be: where mlockall would be taken, memory is refused later.
		var limit unix.Rlimit
		err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)
		limit.Max = min(limit.Max, 1<<40)
		limit.Cur = limit.Max
		if err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)); err != nil {
			fmt.Println("limit:", err)
		}
		if os.Geteuid() == 0 {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&header, &none[0]); err != nil {
				fmt.Println("capabilities:", err)
			}
		}
		fmt.Println(Lock(), status("VmLck"))
	default:
		os.Exit(m.Run())
	}
}

func child(mode string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "an", "argument")
	cmd.Env = append(os.Environ(), "RESIDENT_TEST="+mode)
	return cmd
}

// flushers counts the threads of this process that are I/O flushers, and all of them.
// PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE are in the kernel's linux/sched.h.
func flushers() string {
	const both = 0x00080000 | 0x00100000
	files, _ := filepath.Glob("/proc/self/task/*/stat")
	n := 0
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		_, rest, _ := strings.Cut(string(raw), ") ")
		if fields := strings.Fields(rest); len(fields) > 6 {
			if flags, _ := strconv.ParseUint(fields[6], 10, 64); flags&both == both {
				n++
			}
		}
	}
	return fmt.Sprintf("%d of %d", n, len(files))
}

// permitted skips a test that needs CAP_SYS_RESOURCE.
func permitted(t *testing.T) {
	t.Helper()
	if may, err := capable(unix.CAP_SYS_RESOURCE); err != nil || !may {
		t.Skipf("needs CAP_SYS_RESOURCE (%v)", err)
	}
}

func TestBecomeFlusherIsRefused(t *testing.T) {
	if may, err := capable(unix.CAP_SYS_RESOURCE); err != nil || may {
		t.Skipf("this process may (%v)", err)
	}
	if err := BecomeFlusher(); !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
		t.Errorf("got %v", err)
	}
}

// Every thread is a flusher, the ones of the runtime as well, and the arguments are still there.
func TestBecomeFlusher(t *testing.T) {
	permitted(t)
	out, err := child("become").Output()
	var n, all int
	if _, serr := fmt.Sscanf(string(out), "[an argument] %d of %d <nil>", &n, &all); err != nil || serr != nil || n == 0 || n != all {
		t.Errorf("%s, %v", out, err)
	}
}

func TestStartFlusher(t *testing.T) {
	permitted(t)
	cmd := child("child")
	var out strings.Builder
	cmd.Stdout = &out
	if err := StartFlusher(cmd); err != nil {
		t.Fatal(err)
	}
	var n, all int
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(out.String(), "%d of %d", &n, &all); err != nil || n == 0 || n != all {
		t.Errorf("%s, %v", &out, err)
	}
	if ours := flushers(); !strings.HasPrefix(ours, "0 of") {
		t.Errorf("the parent has become one too: %s", ours)
	}
}

// A limit that is high enough today is not enough tomorrow.
func TestLockWithALimit(t *testing.T) {
	out, err := child("limited").Output()
	if err != nil || !strings.HasPrefix(string(out), ErrNotPermitted.Error()) || !strings.HasSuffix(strings.TrimSpace(string(out)), " 0") {
		t.Errorf("%s, %v", out, err)
	}
}

// A process whose memory is locked locks what it uses, not what it has reserved, and still gives
// back what it needs no more.
func TestLockKeepsUsedMemoryOnly(t *testing.T) {
	if err := Lock(); errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munlockall() }()
	if lck, size := status("VmLck"), status("VmSize"); lck == 0 || status("VmRSS") > size/2 {
		t.Fatalf("%d kB locked, %d of %d in memory", lck, status("VmRSS"), size)
	}
	const much = 128 << 10 // kB
	big := make([]byte, much<<10)
	for i := 0; i < len(big); i += 4096 {
		big[i] = 1
	}
	with := status("VmRSS")
	clear(big[:1])
	big = nil
	debug.FreeOSMemory()
	if without := status("VmRSS"); with < much || without > with-much/2 {
		t.Errorf("%d kB with a buffer of %d, %d without it", with, much, without)
	}
	_ = big
}

// status reads a number of kB from proc.
func status(key string) (n int) {
	raw, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			n, _ = strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")))
		}
	}
	return n
}
