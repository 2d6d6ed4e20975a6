package holder

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	// The same pid with another start time is another process.
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

func TestParseStartTime(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	if n, err := parseStartTime("12 (a) b) c" + ")" + tail); err != nil || n != 4711 {
		t.Fatal(n, err)
	}
	for _, s := range []string{"", "1 (x", "1 (x) S 1 2", "1 (x)" + strings.Replace(tail, "4711", "x", 1)} {
		if _, err := parseStartTime(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func FuzzParseStartTime(f *testing.F) {
	f.Add("12 (a b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21")
	f.Add("1 (x")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := parseStartTime(s); err == nil && !strings.Contains(s, strconv.FormatUint(n, 10)) {
			t.Fatalf("%d out of %q", n, s)
		}
	})
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
