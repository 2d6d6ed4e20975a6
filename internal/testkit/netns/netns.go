// Package netns makes network namespaces for tests: places of their own for processes, with wires
// that can be cut. Nothing that is made in them is seen outside, and the kernel takes all of it
// away with them.
package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name: a descriptor holds it, and the kernel takes it
// away with that.
type Namespace struct{ f *os.File }

// New makes an empty namespace, its loopback up.
func New() (*Namespace, error) {
	type result struct {
		f   *os.File
		err error
	}
	c := make(chan result)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			c <- result{nil, fmt.Errorf("a network namespace cannot be made: %w", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		c <- result{f, err}
	}()
	r := <-c
	if r.err != nil {
		return nil, r.err
	}
	n := &Namespace{r.f}
	if err := n.Command("ip", "link", "set", "lo", "up"); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Close closes the namespace; it ends with its last process.
func (n *Namespace) Close() { _ = n.f.Close() }

// Path names the namespace for the commands of iproute2.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.f.Fd()) }

// Enter moves the calling thread, which must be locked, into the namespace.
func (n *Namespace) Enter() error {
	if n == nil {
		return nil
	}
	return unix.Setns(int(n.f.Fd()), unix.CLONE_NEWNET)
}

// In runs f on a thread inside; a nil namespace is the process's own.
func (n *Namespace) In(f func() error) error {
	c := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := n.Enter()
		if err == nil {
			err = f()
		}
		c <- err
	}()
	return <-c
}

const commandLimit = 10 * time.Second

func (n *Namespace) run(stdin *os.File, name string, args ...string) error {
	return n.In(func() error {
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

// Command runs a program inside, for a few seconds at most.
func (n *Namespace) Command(name string, args ...string) error { return n.run(nil, name, args...) }

// NFT applies a ruleset as one transaction.
func (n *Namespace) NFT(rules string) error {
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

// Address gives an interface an address of a /24 and starts it.
func (n *Namespace) Address(dev, ip string) error {
	return errors.Join(n.Command("ip", "addr", "add", ip+"/24", "dev", dev), n.Command("ip", "link", "set", dev, "up"))
}
