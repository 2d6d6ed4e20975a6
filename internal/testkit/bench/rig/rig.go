// Package rig runs what the benchmark measures: pairs of gemel-target in several forms, and peers.
// All of it is in one folder, and on filesystems of its own.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
)

// HostIQN begins the names of all hosts.
const HostIQN = "iqn.2026-11.storage.gemel.bench:"

// Rig is the folder, the binary and the filesystems of a run.
type Rig struct {
	Lab *lab.Lab
	Bin string       // gemel-target
	Log *slog.Logger // the initiators'
}

// New makes an empty rig for a binary.
func New(dir, binary string, log *slog.Logger) (*Rig, error) {
	l, _, err := lab.New(dir)
	if err != nil {
		return nil, err
	}
	r := &Rig{Lab: l, Bin: l.Path("bin", "gemel-target"), Log: log}
	b, err := os.ReadFile(binary)
	if err == nil { // the lab knows its processes by the folder of their executable
		err = os.WriteFile(r.Bin, b, 0o700)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return r, nil
}

// Close ends and removes everything.
func (r *Rig) Close() error { return r.Lab.Close() }

// Kind of filesystem.
type Kind string

// Filesystems: XFS in a file that a loop device reads and writes directly, as a disk of its own; or
// memory.
const (
	XFS   Kind = "xfs"
	TmpFS Kind = "tmpfs"
)

// Filesystem makes one of so many bytes and mounts it.
func (r *Rig) Filesystem(ctx context.Context, name string, kind Kind, size int64) (string, error) {
	if kind == XFS {
		return r.Lab.XFSDirect(ctx, name, size)
	}
	dir := r.Lab.Path(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		return "", fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	return dir, nil
}

// Served is a device with the processes that serve it.
type Served struct {
	load.Device
	Name  string
	Flags string // what it was started with
	Procs []load.Process
	// Whole says what is wrong with what serves it; nil where nothing can be.
	Whole func(context.Context) error
	// URL names the LUN for a host that uses libiscsi; nil for what speaks another protocol.
	URL func(ctx context.Context, host string) (string, error)
	// File is the LUN's file without a target in between, which is read only; nil for peers.
	File func() (*Served, error)
}

// CloseDevice logs out; a target that does not answer is left alone after some seconds.
func CloseDevice(d load.Device) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = d.Close(ctx)
}

// DropCaches takes all clean pages out of the page cache; what must go is flushed before.
func DropCaches() error {
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return fmt.Errorf("drop caches: %w", err)
	}
	return nil
}

// process is a child with its output kept for the error message.
type process struct {
	cmd  *exec.Cmd
	log  bytes.Buffer
	done chan struct{}
}

func startProcess(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // nothing is left behind
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal is tied to the thread that forks
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		close(p.done)
	}()
	return p, <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends the process, politely first.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// await polls a condition while the process lives.
func (p *process) await(ctx context.Context, what string, cond func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), p.log.String())
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func listening(addr string) func() error {
	return func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	}
}

func find(name, pkg string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not installed (Debian package %s)", name, pkg)
}
