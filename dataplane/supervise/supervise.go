// Package supervise is the parent of a node's process, and what the other node of the pair learns
// from it: which processes of the node have ended (docs/pair.md, R2b).
//
// The supervisor is the first process of the container. It opens no store, makes the nonce of each
// incarnation, gives it to exactly one process and reaps that process. A process that has been
// reaped executes no system call any more, so the partner need not wait for its lease. Nothing else
// is reported: not a process that is stopped or hangs in the kernel, nor one that is not found.
//
// A process that crashes is started again. One that ends by itself, by an orderly stop, an error or
// because the node left, ends the supervisor with the same exit code: what runs the container knows
// those codes. If the supervisor ends first, the process is killed; that costs the partner a lease,
// as the end of the whole container or machine does.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/certfiles"
	"github.com/gemel-storage/gemel/internal/exits"
)

// Config of a supervisor.
type Config struct {
	Cluster, Pair, Node string   // of the process that is supervised
	Boot                string   // id of the operating system's boot
	Program             string   // default: the program that runs now
	Args                []string // of the process
	Listen              net.Listener
	TLS                 *certfiles.Files // nil: plain, which the caller allows on loopback only
	Logger              *slog.Logger
}

// Limits of the wait before a process that crashed is started again: none after the first crash,
// then a second, which doubles. A life of forget or longer counts as sound.
const (
	firstWait = time.Second
	maxWait   = time.Minute
	forget    = time.Minute
)

// notesMax bounds the wait for the end of a reaped process's notes.
const notesMax = 10 * time.Millisecond

// waitAfter is the wait after so many crashes in a row.
func waitAfter(crashes int) time.Duration {
	if crashes <= 1 {
		return 0
	}
	return min(firstWait<<min(crashes-2, 10), maxWait)
}

// Run starts the process, and again after a crash, until ctx ends, which stops it in an orderly way
// with SIGTERM, or until it ends by itself. It returns the exit code.
func Run(ctx context.Context, c Config) (int, error) {
	if c.Program == "" {
		c.Program = "/proc/self/exe"
	}
	// A core dump of some GiB would keep the process from being reaped for seconds.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		c.Logger.Warn("core dumps cannot be switched off: a crash may cost the time that a core dump takes", "err", err)
	}
	t := newTestifier(&c)
	serving, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { t.serve(serving); close(done) }()
	defer func() { end(); <-done }()

	life := Life{}
	row := 0
	for {
		begun := time.Now()
		life.Nonce, life.Blames = rand.Uint64()|1, t.blames.now()
		state, err := c.live(ctx, &life, &t.blames)
		if err != nil {
			return exits.Failed, err
		}
		t.ended(pair.Incarnation{Boot: c.Boot, Nonce: life.Nonce})
		how := describe(state)
		if code := state.ExitStatus(); ctx.Err() != nil || state.Exited() && code != crashed {
			if state.Exited() {
				return code, nil
			}
			return exits.Failed, fmt.Errorf("the node's process did not stop in an orderly way: %s", how)
		}
		lived := time.Since(begun)
		if lived >= forget {
			row = 0
		}
		row++
		wait := waitAfter(row)
		life.Crashes++
		life.LastAt = time.Now().Unix()
		life.Last = fmt.Sprintf("%s after %s", how, lived.Round(time.Millisecond))
		c.Logger.Error("the node's process crashed; it is started again", "ended", how, "lived", lived.Round(time.Millisecond), "wait", wait, "crashes", life.Crashes)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return exits.OK, nil
		}
	}
}

// crashed is the exit code of a Go program that panics.
const crashed = 2

func describe(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "killed by signal " + unix.SignalName(s.Signal())
	}
	return fmt.Sprintf("exit code %d", s.ExitStatus())
}

// live runs one process from its start until it has been reaped.
func (c *Config) live(ctx context.Context, life *Life, known *blames) (syscall.WaitStatus, error) {
	// The process ends when the last writing end of this pipe is closed: that is the end of this
	// process, whatever ends it.
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = w.Close() }()
	notes, write, err := os.Pipe()
	if err != nil {
		_ = r.Close()
		return 0, err
	}
	heard := make(chan struct{})
	go func() { known.listen(notes, c.Node, life.Nonce, c.Logger); close(heard) }()
	defer func() { _ = notes.Close(); <-heard }()
	cmd := exec.Command(c.Program, c.Args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = life.environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = nil, os.Stdout, os.Stderr, []*os.File{r, write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, reaped := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal is sent when the thread that forked ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_, _ = r.Close(), write.Close()
		if started <- err; err == nil {
			reaped <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return 0, fmt.Errorf("start %s: %w", c.Program, err)
	}
	select {
	case err = <-reaped:
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err = <-reaped // its own limit ends it, or what runs the container kills both
	}
	// What it wrote last is known before the partner hears of its end. The pipe has ended with it,
	// unless something else still has it.
	select {
	case <-heard:
	case <-time.After(notesMax):
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for the node's process: %w", err)
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		return 0, errors.New("wait for the node's process: its status is not known")
	}
	return status, nil
}

// IgnoreOthers keeps signals from ending a supervisor that are meant for its process or for
// nobody: SIGHUP of a terminal, SIGPIPE of a log without a reader.
func IgnoreOthers() { signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE) }
