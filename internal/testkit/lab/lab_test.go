package lab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/loopdev"
)

func newLab(t *testing.T) *Lab {
	t.Helper()
	l, swept, err := New(t.TempDir())
	if err != nil || len(swept) != 0 {
		t.Fatal(swept, err)
	}
	return l
}

// sleeper puts an executable that sleeps into the lab.
func sleeper(t *testing.T, l *Lab) string {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dst := l.Path("bin", "sleeper")
	if err := os.WriteFile(dst, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return dst
}

func gone(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	if left, err := Leftovers(dir); err != nil || len(left) != 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}

func TestCloseKillsAndRemoves(t *testing.T) {
	l := newLab(t)
	p, err := Start("sleeper", l.Path("log"), sleeper(t, l), "600")
	if err != nil {
		t.Fatal(err)
	}
	if left, err := Leftovers(l.Dir); err != nil || len(left) != 1 {
		t.Fatalf("leftovers while it runs: %v %v", left, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	gone(t, l.Dir)
}

func TestStopEndsAProcess(t *testing.T) {
	l := newLab(t)
	defer l.Close()
	p, err := Start("sleeper", l.Path("log"), sleeper(t, l), "600")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(5 * time.Second); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("stop: %v", err)
	}
	if !p.Exited() {
		t.Error("not ended")
	}
}

// What a run that was killed left is swept by the next; a run that lives is left alone.
func TestSweepRemovesWhatDeadRunsLeft(t *testing.T) {
	base := t.TempDir()
	dead, _, err := New(base)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start("sleeper", dead.Path("log"), sleeper(t, dead), "600")
	if err != nil {
		t.Fatal(err)
	}
	alive, swept, err := New(base)
	if err != nil || len(swept) != 0 {
		t.Fatal(swept, err)
	}
	if err := syscall.Flock(int(dead.lock.Fd()), syscall.LOCK_UN); err != nil { // as the kernel does at its death
		t.Fatal(err)
	}
	third, swept, err := New(base)
	if err != nil || len(swept) != 1 || swept[0] != dead.Dir {
		t.Fatal(swept, err)
	}
	<-p.done
	gone(t, dead.Dir)
	if _, err := os.Stat(alive.Dir); err != nil {
		t.Error(err)
	}
	if err := errors.Join(alive.Close(), third.Close()); err != nil {
		t.Error(err)
	}
	gone(t, alive.Dir)
}

func TestXFS(t *testing.T) {
	if err := CanMount(); err != nil {
		t.Skipf("needs mounts: %v", err)
	}
	l := newLab(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir, err := l.XFS(ctx, "node", 512<<20)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600)
	}
	if err != nil {
		_ = l.Close()
		t.Fatal(err)
	}
	held, err := os.Open(filepath.Join(dir, "file")) // busy, as after a crash in the middle
	if err != nil {
		t.Error(err)
	}
	left, err := Leftovers(l.Dir)
	if err != nil || len(left) != 2 {
		t.Errorf("mount and loop device expected: %v %v", left, err)
	}
	go func() { // lets go only after the first attempt
		for {
			if m, _ := mountsBelow(l.Dir); len(m) == 0 {
				held.Close()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	gone(t, l.Dir)
}

// A loop device on a file that is on a mount below the folder, as that of a userspace attachment
// is.
func TestLoopDeviceOnAMount(t *testing.T) {
	if err := CanMount(); err != nil {
		t.Skipf("needs mounts: %v", err)
	}
	l := newLab(t)
	at := l.Path("m")
	if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount("none", at, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(at, "file"))
	if err == nil {
		err = f.Truncate(1 << 20)
	}
	if err != nil {
		t.Fatal(err)
	}
	loop, err := loopdev.Attach(f, false)
	if err != nil {
		t.Fatal(err)
	}
	// It is to stay when it is closed.
	if err := unix.IoctlLoopSetStatus64(int(loop.Fd()), &unix.LoopInfo64{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Close(), loop.Close()); err != nil {
		t.Fatal(err)
	}
	if left, err := loopdev.On(l.Dir); err != nil || len(left) != 1 {
		t.Fatal("it went by itself: this shows nothing", left, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if loop, err = os.Open(loop.Name()); err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	if info, err := unix.IoctlLoopGetStatus64(int(loop.Fd())); !errors.Is(err, unix.ENXIO) {
		t.Errorf("%s is still bound to %s (%v)", loop.Name(), info.File_name, err)
		_ = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0)
	}
}

func TestBuildIsCutShort(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := l.Build(ctx, ".", "."); !errors.Is(err, stop) {
		t.Errorf("build: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	gone(t, l.Dir)
}
