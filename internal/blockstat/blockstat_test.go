package blockstat

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	const five = " 100 5 4000 250 40 2 800 90 0 300 345 3 0 24 7 2 11\n"
	want := Counters{Busy: 300 * time.Millisecond, Reads: 100, Reading: 250 * time.Millisecond, All: 358 * time.Millisecond}
	if c, err := parse(five); err != nil || c != want {
		t.Errorf("%+v %v", c, err)
	}
	want.All = 340 * time.Millisecond
	if c, err := parse("100 5 4000 250 40 2 800 90 0 300 345"); err != nil || c != want {
		t.Errorf("of an old kernel: %+v %v", c, err)
	}
	for text, say := range map[string]string{"": "0 fields", "1 2 3": "3 fields", "100 5 4000 -1 40 2 800 90 0 300 345": "field 4"} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A filesystem without a device of its own is an error, and so is a directory that is not there.
func TestNoDevice(t *testing.T) {
	if _, err := Of(fstest.MapFS{}, t.TempDir()); err == nil {
		t.Error("a device without counters")
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err == nil && st.Type == unix.TMPFS_MAGIC {
		if _, err := Of(os.DirFS("/"), "/dev/shm"); err == nil {
			t.Error("a filesystem in memory has a device")
		}
	}
	if _, err := Of(os.DirFS("/"), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there has a device")
	}
}

// The counters of a real loop device grow by what is read from it past the page cache.
func TestLoopDevice(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a loop device")
	}
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	run := func(name string, args ...string) (string, error) {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out)), err
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(64 << 20)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := run("mkfs.ext4", "-q", image); err != nil {
		t.Skipf("no filesystem: %v", err)
	}
	dev, err := run("losetup", "--find", "--show", image)
	if err != nil {
		t.Skipf("no loop device: %v", err)
	}
	t.Cleanup(func() {
		if _, err := run("losetup", "--detach", dev); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount(dev, at, "ext4", 0, ""); err != nil {
		t.Skipf("cannot mount %s: %v", dev, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(at, "data"), make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Of(os.DirFS("/"), at)
	if err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	before, err := d.Read()
	if err != nil {
		t.Fatal(err)
	}
	g, err := os.Open(filepath.Join(at, "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	buf := make([]byte, 1<<20)
	for range 20 { // a read may take less than the millisecond that is counted
		if err := unix.Fadvise(int(g.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		for off := int64(0); off < 32<<20; off += int64(len(buf)) {
			if _, err := g.ReadAt(buf, off); err != nil {
				t.Fatal(err)
			}
		}
	}
	after, err := d.Read()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v, then %+v", dev, before, after)
	if after.Reads < before.Reads+20 || after.Busy <= before.Busy || after.Reading <= before.Reading || after.All-before.All < after.Reading-before.Reading {
		t.Errorf("%s: %+v, then %+v", dev, before, after)
	}
}
