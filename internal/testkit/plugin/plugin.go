// Package plugin runs a real gemel-csi process for tests and the demo, and drives it over its
// socket as a kubelet and the Kubernetes sidecars would. What it leaves behind after a failure,
// Purge takes away.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gemel-storage/gemel/csi/attach/userspace"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Options of a plugin. Dir, Binary and PairEndpoints are needed.
type Options struct {
	Dir           string   // state, socket and log go here
	Binary        string   // gemel-csi
	PairEndpoints []string // control addresses of both nodes
	NodeIQN       string   // default: a generated one
	Log           io.Writer
	Args          []string // more flags
}

// Plugin is one gemel-csi process, or the place for the next.
type Plugin struct {
	Options
	conn *grpc.ClientConn
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	Identity   csi.IdentityClient
	Controller csi.ControllerClient
	Node       csi.NodeClient
}

// New lays a plugin out.
func New(o Options) (*Plugin, error) {
	p := &Plugin{Options: o}
	if err := os.MkdirAll(p.StateDir(), 0o700); err != nil {
		return nil, err
	}
	var err error
	p.conn, err = grpc.NewClient(p.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	p.Identity, p.Controller, p.Node = csi.NewIdentityClient(p.conn), csi.NewControllerClient(p.conn), csi.NewNodeClient(p.conn)
	return p, nil
}

// StateDir of the plugin.
func (p *Plugin) StateDir() string { return filepath.Join(p.Dir, "csi") }

// Endpoint is the plugin's socket.
func (p *Plugin) Endpoint() string { return "unix://" + filepath.Join(p.Dir, "csi.sock") }

// LogFile is where the log goes unless Options.Log is set.
func (p *Plugin) LogFile() string { return filepath.Join(p.Dir, "csi.log") }

// Start runs the process and waits until it answers.
func (p *Plugin) Start(ctx context.Context) error {
	args := []string{"--endpoint", p.Endpoint(), "--state-dir", p.StateDir(), "--attach", "userspace"}
	for _, e := range p.PairEndpoints {
		args = append(args, "--pair-endpoint", e)
	}
	if p.NodeIQN != "" {
		args = append(args, "--node-iqn", p.NodeIQN)
	}
	cmd := exec.Command(p.Binary, append(args, p.Args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out := p.Log
	var f *os.File
	if out == nil {
		var err error
		if f, err = os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return err
		}
		out = f
	}
	cmd.Stdout, cmd.Stderr = out, out
	p.cmd, p.done, p.err = cmd, make(chan struct{}), nil
	started := make(chan error)
	go func() {
		// The parent-death signal is tied to the thread that forks.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		if f != nil {
			_ = f.Close()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return err
	}
	return harness.Wait(ctx, "the plugin answers", func() (bool, string) {
		select {
		case <-p.done:
			return false, fmt.Sprintf("it has ended: %v", p.err)
		default:
		}
		ask, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		r, err := p.Identity.Probe(ask, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		return err == nil && r.GetReady().GetValue(), fmt.Sprint(err)
	})
}

// stop signals the process and waits for its end.
func (p *Plugin) stop(s syscall.Signal) error {
	if p.cmd == nil || p.cmd.Process == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(s)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("the plugin did not end within 30 s of %v", s)
	}
	p.cmd = nil
	if s == syscall.SIGKILL {
		return nil
	}
	return p.err
}

// Term ends the process in an orderly way; attachments stay.
func (p *Plugin) Term() error { return p.stop(syscall.SIGTERM) }

// Kill ends it as a crash does; attachments stay.
func (p *Plugin) Kill() error { return p.stop(syscall.SIGKILL) }

// Close ends the process and the connection.
func (p *Plugin) Close() error { return errors.Join(p.Term(), p.conn.Close()) }

// Purge unmounts everything below Dir and takes every attachment away, whatever uses it. It says
// what it found: after an orderly end, nothing.
func (p *Plugin) Purge(ctx context.Context) (found []string, err error) {
	a, err := userspace.New(userspace.Config{Dir: filepath.Join(p.StateDir(), "attach"), Command: []string{p.Binary, "attach-holder"}})
	if err != nil {
		return nil, err
	}
	ids, err := a.Attached()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, id := range ids {
		found = append(found, "attachment "+id)
		errs = append(errs, a.Purge(ctx, id))
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, p.Dir+"/"), false
	})
	errs = append(errs, err)
	for _, m := range slices.Backward(mounts) {
		found = append(found, "mount "+m.Mountpoint)
		errs = append(errs, unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	return found, errors.Join(errs...)
}
