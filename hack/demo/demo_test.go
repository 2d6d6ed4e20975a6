package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
)

// program is the demo as a user has it: a process that gets signals.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "demo-test-")
	if err == nil {
		program, err = harness.Build(context.Background(), dir, "./hack/demo", raceFlags...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// output collects what a process prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *output) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *output) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// session is one run with a folder of its own.
type session struct {
	t        *testing.T
	dir, out string
	said     output
	cmd      *exec.Cmd
	done     chan struct{}
	err      error
}

func start(t *testing.T, args ...string) *session {
	t.Helper()
	// Sockets are made below it, whose paths are short: it must not grow with the name of the test.
	short, err := os.MkdirTemp("", "demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(short); err != nil {
			t.Error(err)
		}
	})
	dir, err := filepath.EvalSymlinks(short)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, dir: dir, out: t.TempDir(), done: make(chan struct{})}
	s.cmd = exec.Command(program, append(args, "--dir", s.dir, "--out", s.out, "--blocks", "1024", "--timeout", "4m")...)
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		s.err = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		select {
		case <-s.done:
		default:
			_ = s.cmd.Process.Signal(syscall.SIGTERM)
			<-s.done
		}
	})
	return s
}

// end waits for the process and checks that nothing is left.
func (s *session) end() (exit int) {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(5 * time.Minute):
		s.t.Fatalf("the demo does not end; it said\n%s", s.said.String())
	}
	if left, err := lab.Leftovers(s.dir); err != nil || len(left) > 0 {
		s.t.Errorf("left behind: %v %v", left, err)
	}
	if files, err := os.ReadDir(s.dir); err != nil || len(files) > 0 {
		s.t.Errorf("files left behind: %v %v", files, err)
	}
	var e *exec.ExitError
	if errors.As(s.err, &e) {
		return e.ExitCode()
	}
	if s.err != nil {
		s.t.Fatal(s.err)
	}
	return 0
}

func (s *session) report(name string) *Report {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.out, name))
	if err != nil {
		s.t.Fatalf("%v; it said\n%s", err, s.said.String())
	}
	p := newReport()
	if err := json.Unmarshal(b, p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// modes of running: through CSI with mounts where that is possible, and raw.
func modes(t *testing.T, f func(t *testing.T, args ...string)) {
	t.Run("raw", func(t *testing.T) { f(t, "--raw") })
	t.Run("csi", func(t *testing.T) {
		if err := lab.CanMount(); err != nil {
			t.Skipf("needs mounts: %v", err)
		}
		f(t)
	})
}

// A byte of one copy that is flipped makes the run fail, for that reason and no other.
func TestFlippedByteIsFound(t *testing.T) {
	modes(t, func(t *testing.T, args ...string) {
		s := start(t, append(args, "--corrupt-for-test")...)
		if exit := s.end(); exit != 1 {
			t.Errorf("exit status %d; it said\n%s", exit, s.said.String())
		}
		p := s.report("demo.json")
		if p.Identical || p.Success || p.LostWrites != 0 || p.IOErrors != 0 || p.TransferMS == nil || p.FailoverMS == nil {
			t.Errorf("report: %+v", p)
		}
		bad := 0
		for _, im := range p.Images {
			if !im.Identical {
				bad++
			}
		}
		if bad != 1 || len(p.Images) != 4 {
			t.Errorf("%d of %d images differ", bad, len(p.Images))
		}
	})
}

func TestKillsLoseNoWrite(t *testing.T) {
	modes(t, func(t *testing.T, args ...string) {
		s := start(t, append([]string{"kill", "-n", "3", "--seed", "5"}, args...)...)
		if exit := s.end(); exit != 0 {
			t.Fatalf("exit status %d; it said\n%s", exit, s.said.String())
		}
		p := s.report("demo-kill.json")
		if !p.Success || len(p.Kills) != 3 || *p.Seed != 5 || p.AckedWrites < 3000 {
			t.Errorf("report: %+v", p)
		}
	})
}

// Ctrl-C at any moment ends the run and leaves nothing behind.
func TestInterruptLeavesNothingBehind(t *testing.T) {
	modes(t, func(t *testing.T, args ...string) {
		moments := []string{"Build", "Start the pair", "Create, ", "Start the writers", "kill -9", "Restart it", "Expand both", "Snapshot of",
			"read everything back through", "Stop both", "delete everything"}
		if testing.Short() {
			moments = []string{"Start the pair", "kill -9", "Snapshot of"}
		}
		for _, at := range moments {
			t.Run(at, func(t *testing.T) {
				s := start(t, args...)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				err := harness.Wait(ctx, at, func() (bool, string) {
					said := s.said.String()
					return strings.Contains(said, at), said
				})
				if err != nil {
					t.Fatal(err)
				}
				group := -s.cmd.Process.Pid // as a terminal does: the whole group gets it
				if err := syscall.Kill(group, syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
				_ = syscall.Kill(group, syscall.SIGINT) // an impatient user; it may have ended already
				if exit := s.end(); exit != 130 {
					t.Errorf("exit status %d; it said\n%s", exit, s.said.String())
				}
			})
		}
	})
}

// A killed run cannot clean up; the next run does.
func TestNextRunSweeps(t *testing.T) {
	modes(t, func(t *testing.T, args ...string) {
		// The targets die with the demo, and it cannot end before its writes have failed.
		s := start(t, append(args, "--io-deadline", "3s")...)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		err := harness.Wait(ctx, "writers write", func() (bool, string) {
			said := s.said.String()
			return strings.Contains(said, "planned, under load"), said
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = s.cmd.Process.Kill()
		<-s.done
		l, swept, err := lab.New(s.dir)
		if err != nil || len(swept) != 1 {
			t.Fatal(swept, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		s.end()
	})
}
