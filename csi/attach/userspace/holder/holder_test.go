package holder

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/durable"
)

func TestIdentityOfThisProcess(t *testing.T) {
	dir := t.TempDir()
	if err := writeIdentity(dir); err != nil {
		t.Fatal(err)
	}
	if err := Signal(dir, 0); err != nil {
		t.Fatalf("signal 0 to ourselves: %v", err)
	}
	// The same PID with another start time is another process.
	id, err := ReadIdentity(dir)
	if err != nil || id.PID != os.Getpid() {
		t.Fatal(id, err)
	}
	id.StartTime++
	if err := durable.WriteJSON(filepath.Join(dir, identityName), id); err != nil {
		t.Fatal(err)
	}
	if err := Signal(dir, unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Fatalf("got %v", err)
	}
}

func TestIdentityOfAnEndedProcess(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := durable.WriteJSON(filepath.Join(dir, identityName), Identity{cmd.Process.Pid, start}); err != nil {
		t.Fatal(err)
	}
	if err := Signal(dir, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := Signal(dir, unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Fatalf("got %v", err)
	}
}

func TestLogIsBounded(t *testing.T) {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "l"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	l := &Log{File: f}
	line := []byte(strings.Repeat("x", 1<<20))
	for range 9 {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if st, _ := f.Stat(); st.Size() == 0 || st.Size() > maxLog {
		t.Fatalf("%d bytes", st.Size())
	}
}
