package slowdisk

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFilesystemOnASlowDisk(t *testing.T) {
	d := start(t, Knobs{})
	data := make([]byte, 8<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	a, b := filepath.Join(d.Mount, "a"), filepath.Join(d.Mount, "b")
	f, err := os.Create(a)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if s := d.mustStats(t); s.WriteBytes < uint64(len(data)) || s.Flushes == 0 {
		t.Errorf("after %d bytes and fsync: %+v", len(data), s)
	}
	src, err := os.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(b, os.O_CREATE|os.O_RDWR|syscall.O_DIRECT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		t.Fatalf("the filesystem does not share extents: %v", err)
	}
	got := aligned(t, len(data))
	if _, err := dst.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Error("the clone reads other data than was written")
	}
	if s := d.mustStats(t); s.ReadBytes < uint64(len(data)) {
		t.Errorf("after direct reads of %d bytes: %+v", len(data), s)
	}
	// What is freed comes back as zeroes.
	if err := unix.Fallocate(int(dst.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := dst.ReadAt(got[:1<<20], 0); err != nil || !bytes.Equal(got[:1<<20], make([]byte, 1<<20)) {
		t.Errorf("a hole does not read as zeroes (%v)", err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	d := start(t, Knobs{})
	if l := left(t, d.dir, d.PID); len(l) < 4 {
		t.Fatalf("of two mounts, a loop device and a process this sees %q: it would miss what is left", l)
	}
	// Even stuck with something to write.
	if err := os.WriteFile(filepath.Join(d.Mount, "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	d.mustSet(t, Knobs{Stuck: true})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if l := left(t, d.dir, d.PID); len(l) != 0 {
		t.Errorf("left: %q", l)
	}
	if names, err := os.ReadDir(d.dir); err != nil || len(names) != 0 {
		t.Errorf("files left: %v (%v)", names, err)
	}
	if err := d.Set(t.Context(), Knobs{}); err == nil {
		t.Error("a closed disk took knobs")
	}
	if err := d.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCloseInUse(t *testing.T) {
	d := start(t, Knobs{})
	f, err := os.Create(filepath.Join(d.Mount, "file"))
	if err != nil {
		t.Fatal(err)
	}
	err = d.Close()
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %v, want one that says that it was in use", err)
	}
	d.closed = nil // the cleanup asks again
	if err := f.Close(); err != nil {
		t.Log(err)
	}
	eventually(t, "the user has gone, and not the disk", func() bool { return len(left(t, d.dir, d.PID)) == 0 })
}

// A parent that is killed cannot clean up; the server sees its end.
func TestParentDies(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip("no slow disk here: ", err)
	}
	dir := filepath.Join(t.TempDir(), "disk")
	parent := exec.Command("/proc/self/exe")
	parent.Env = append(os.Environ(), holdEnv+"="+dir)
	parent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err == nil && len(left(t, dir, pid)) < 4 {
		t.Error("there is no disk: this shows nothing")
	}
	_ = parent.Process.Kill()
	_ = parent.Wait()
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	eventually(t, "the disk remains after its parent", func() bool { return len(left(t, dir, pid)) == 0 })
}

// XFS that could not write its log has shut itself down. Mounted again, it has what had been made
// durable before.
func TestRemountAfterAShutdown(t *testing.T) {
	d := start(t, Knobs{})
	name := filepath.Join(d.Mount, "file")
	if err := errors.Join(os.WriteFile(name, []byte("kept"), 0o600), syncFile(name)); err != nil {
		t.Fatal(err)
	}
	d.mustSet(t, Knobs{WriteErrors: true, FlushErrors: true})
	lost := filepath.Join(d.Mount, "lost")
	if err := errors.Join(os.WriteFile(lost, nil, 0o600), syncFile(d.Mount)); err == nil {
		t.Fatal("a disk that takes nothing took a file")
	}
	d.mustSet(t, Knobs{})
	mustBe(t, os.WriteFile(lost, []byte("lost"), 0o600), syscall.EIO) // it stays so
	if err := d.Remount(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "kept" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := os.Stat(lost); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the disk did not take is there: %v", err)
	}
	if err := errors.Join(os.WriteFile(lost, []byte("new"), 0o600), syncFile(lost)); err != nil {
		t.Error(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	mustBe(t, d.Remount(t.Context()), syscall.EBUSY)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestReplacedDiskIsEmpty(t *testing.T) {
	d := start(t, Knobs{})
	name := filepath.Join(d.Mount, "file")
	if err := errors.Join(os.WriteFile(name, make([]byte, 1<<20), 0o600), syncFile(name)); err != nil {
		t.Fatal(err)
	}
	if err := d.Replace(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(d.Mount); err != nil || len(names) != 0 {
		t.Errorf("a new disk holds %v (%v)", names, err)
	}
	if l := left(t, d.dir, d.PID); len(l) != 4 {
		t.Errorf("two mounts, a loop device and a process are one disk, not %q", l)
	}
	if err := errors.Join(os.WriteFile(name, make([]byte, 1<<20), 0o600), syncFile(name)); err != nil {
		t.Error(err)
	}
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func TestStartRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"Size is 1048576": {Size: 1 << 20},
		"Size is":         {Size: MinSize + 1},
		"ReadLatency":     {Size: MinSize, Knobs: Knobs{ReadLatency: -1}},
		"MaxParallel":     {Size: MinSize, Knobs: Knobs{MaxParallel: -1}},
		"WriteBandwidth":  {Size: MinSize, Knobs: Knobs{WriteBandwidth: -1}},
		"ErrorsAt":        {Size: MinSize, Knobs: Knobs{ErrorsAt: []Range{{Off: 4096}}}},
	} {
		o.Dir = filepath.Join(t.TempDir(), "disk")
		if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %s", err, name)
		}
		if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("refused, but %s was made (%v)", o.Dir, err)
		}
	}
}

func TestStartTakesNoOtherDisk(t *testing.T) {
	d := start(t, Knobs{})
	_, err := Start(t.Context(), Options{Dir: d.dir, Size: MinSize})
	mustBe(t, err, os.ErrExist)
	if _, err := os.ReadDir(d.Mount); err != nil {
		t.Error(err)
	}
	d.mustStats(t)
}

func TestStartIsCutShort(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip("no slow disk here: ", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	dir := filepath.Join(t.TempDir(), "disk")
	_, err := Start(ctx, Options{Dir: dir, Size: MinSize})
	mustBe(t, err, stop)
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("files left: %v (%v)", names, err)
	}
}
