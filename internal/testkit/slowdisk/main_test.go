package slowdisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gemel-storage/gemel/internal/testkit/loopdev"
)

// holdEnv makes this test binary a program that has a disk in the folder that it names, until it is
// killed.
const holdEnv = "GEMEL_SLOWDISK_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		d, err := Start(context.Background(), Options{Dir: dir, Size: MinSize, Knobs: Knobs{Stuck: true}})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(d.PID)
		select {}
	}
	os.Exit(m.Run())
}

func start(t *testing.T, k Knobs) *Disk {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip("no slow disk here: ", err)
	}
	d, err := Start(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "disk"), Size: MinSize, Knobs: k})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *Disk) mustSet(t *testing.T, k Knobs) {
	t.Helper()
	if err := d.Set(t.Context(), k); err != nil {
		t.Fatal(err)
	}
}

func (d *Disk) mustStats(t *testing.T) Stats {
	t.Helper()
	s, err := d.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// directFile makes a file of so many bytes that are on the disk, and opens it for direct I/O.
func directFile(t *testing.T, d *Disk, name string, size int) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(d.Mount, name), os.O_CREATE|os.O_EXCL|os.O_RDWR|syscall.O_DIRECT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.WriteAt(aligned(t, size), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return f
}

// aligned is memory for direct I/O.
func aligned(t *testing.T, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// left lists what there still is of a disk.
func left(t *testing.T, dir string, pid int) []string {
	t.Helper()
	var out []string
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		out = append(out, "mount "+m.Mountpoint)
	}
	loops, err := loopdev.On(filepath.Join(dir, fuseName))
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, loops...)
	// Detached mounts are invisible, but their loop device knows its file by a shorter name
	// then.
	short, err := loopdev.On("/" + fileName(pid))
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, short...)
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && slices.Contains(strings.Split(string(b), "\x00"), dir) {
		out = append(out, fmt.Sprint("process ", pid))
	}
	return out
}

// eventually fails the test when a condition does not come true within a generous time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) { return ok(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func mustBe(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}
