package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/hack/demo/lab"
)

// isolatedEnv marks the process that runs in namespaces of its own.
const isolatedEnv = "GEMEL_CHAOS_ISOLATED"

// Supported says why a run is not possible on this machine; nil if it is.
func Supported() error {
	if err := lab.CanMount(); err != nil {
		return err
	}
	for cmd, pkg := range map[string]string{"ip": "iproute2", "tc": "iproute2", "nft": "nftables"} {
		if _, err := exec.LookPath(cmd); err != nil {
			return fmt.Errorf("%s is missing (Debian package %s)", cmd, pkg)
		}
	}
	ns, err := newNamespace()
	if err != nil {
		return err
	}
	defer ns.close()
	// A trial of everything that is needed of the kernel, where it can do no harm.
	return errors.Join(
		ns.command("ip", "link", "add", "x", "type", "veth", "peer", "name", "y"),
		ns.nft("table inet t { chain i { type filter hook input priority 0; iifname \"x\" numgen random mod 100 < 5 drop\n"+
			"iifname \"x\" meta l4proto tcp reject with tcp reset\n}\n}\n"),
		ns.command("tc", "qdisc", "add", "dev", "x", "root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "1s"))
}

// Isolated is true in the process that Isolate has started.
func Isolated() bool { return os.Getenv(isolatedEnv) != "" }

// Isolate runs this program again, with the same arguments, in a network and a mount namespace of its own, and returns
// its exit code. Nothing that the copy makes is visible outside, and the kernel undoes all of it when the copy and
// its children have ended, however they end. Interrupts are passed on.
func Isolate(ctx context.Context) (int, error) {
	exe, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolatedEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A group of its own: the terminal's interrupt comes once, from here.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Setpgid: true,
		Pdeathsig: syscall.SIGTERM}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	// The parent-death signal is tied to the thread that forks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("namespaces: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			ctx = context.Background()
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return max(exit.ExitCode(), 1), nil
			}
			return 0, err
		}
	}
}

// namespace is a network namespace without a name: a descriptor holds it, and the kernel takes it away with that.
type namespace struct{ f *os.File }

func newNamespace() (*namespace, error) {
	type result struct {
		f   *os.File
		err error
	}
	c := make(chan result)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			c <- result{nil, fmt.Errorf("a network namespace can not be made: %w", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		c <- result{f, err}
	}()
	r := <-c
	if r.err != nil {
		return nil, r.err
	}
	n := &namespace{r.f}
	if err := n.command("ip", "link", "set", "lo", "up"); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *namespace) close() { _ = n.f.Close() }

// path names the namespace for the commands of iproute2.
func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.f.Fd()) }

// enter moves the calling thread, which must be locked, into the namespace.
func (n *namespace) enter() error {
	if n == nil {
		return nil
	}
	return unix.Setns(int(n.f.Fd()), unix.CLONE_NEWNET)
}

// in runs f on a thread inside; a nil namespace is the process's own.
func (n *namespace) in(f func() error) error {
	c := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := n.enter()
		if err == nil {
			err = f()
		}
		c <- err
	}()
	return <-c
}

const commandLimit = 10 * time.Second

func (n *namespace) run(stdin *os.File, name string, args ...string) error {
	return n.in(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), commandLimit)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		if stdin != nil {
			cmd.Stdin = stdin
		}
		if b, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, b)
		}
		return nil
	})
}

func (n *namespace) command(name string, args ...string) error { return n.run(nil, name, args...) }

// nft applies a ruleset as one transaction.
func (n *namespace) nft(rules string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	_, err = w.WriteString(rules) // far below what a pipe holds
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	return n.run(r, "nft", "-f", "-")
}
