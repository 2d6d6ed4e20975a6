package loopdev

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

func TestAttachAFileToALoopDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("no loop devices here: ", err)
	}
	for _, direct := range []bool{false, true} {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(1 << 20); err != nil {
			t.Fatal(err)
		}
		if fd, err := unix.Open(f.Name(), unix.O_RDWR|unix.O_DIRECT, 0); err == nil {
			_ = unix.Close(fd)
		} else if direct {
			t.Skipf("%s is on a filesystem without direct I/O: %v", dir, err)
		}
		loop, err := Attach(f, direct)
		if err != nil {
			t.Fatal(err)
		}
		info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		if err != nil || info.Flags&unix.LO_FLAGS_DIRECT_IO != 0 != direct {
			t.Errorf("direct %v: flags %#x (%v)", direct, info.Flags, err)
		}
		for _, at := range []string{dir, f.Name()} {
			if on, err := On(at); err != nil || len(on) != 1 || on[0] != loop.Name() {
				t.Errorf("on %s: %q (%v), want %s", at, on, err, loop.Name())
			}
		}
		if on, err := On(filepath.Join(dir, "fil")); err != nil || len(on) != 0 {
			t.Errorf("part of a name finds %q (%v)", on, err)
		}
		data := bytes.Repeat([]byte("gemel..."), 512)
		_, err = loop.WriteAt(data, 8192)
		if err := errors.Join(err, loop.Sync(), loop.Close()); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data))
		if _, err := f.ReadAt(got, 8192); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the file has other data than the device was given (%v)", err)
		}
		if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			on, err := On(dir)
			return err == nil && len(on) == 0, nil
		}); err != nil {
			t.Error("closed, and still attached")
		}
	}
}
