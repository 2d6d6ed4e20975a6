package fd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestControlRepeatsWhatASignalCut(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	cut := 2
	err = With(f, func(fd int) error {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			t.Error(err)
		}
		if cut--; cut >= 0 {
			return unix.EINTR
		}
		return unix.ENOSPC
	})
	if !errors.Is(err, unix.ENOSPC) || cut != -1 {
		t.Errorf("%v, %d calls left", err, cut)
	}
	if err := errors.Join(Datasync(f), f.Close()); err != nil {
		t.Error(err)
	}
	if Datasync(f) == nil {
		t.Error("a closed file is as durable as one that is open")
	}
}

func TestSyncDir(t *testing.T) {
	dir := t.TempDir()
	if err := SyncDir(dir); err != nil {
		t.Error(err)
	}
	if err := SyncDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func TestClosedFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	never := func(int) error {
		t.Error("it ran")
		return nil
	}
	if err := Control(raw, never); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if err := With(f, never); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}
