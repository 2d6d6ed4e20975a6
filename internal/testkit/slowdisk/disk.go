package slowdisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/capability"
	"github.com/gemel-storage/gemel/internal/resident"
	"github.com/gemel-storage/gemel/internal/testkit/loopdev"
)

// MinSize is the smallest Options.Size, in bytes: mkfs.xfs takes no less.
const MinSize = capability.MinXFS

// closeLimit is how long Close waits for the server, which writes out what XFS has not written yet.
const closeLimit = 2 * time.Minute

// Options are what a disk is made of.
type Options struct {
	Dir   string // a folder of the disk's own, which is made if it is missing; the sparse file is in it, so its disk has to be the faster one
	Size  int64  // bytes, at least MinSize, a multiple of 4096
	Knobs Knobs  // from the time on that it is mounted; making the filesystem is not slowed down
}

// Disk is a mounted filesystem. Its methods may be called concurrently.
type Disk struct {
	Mount string // the XFS
	PID   int    // of the process that serves the requests, whose CPU time is the lab's

	dir    string
	cmd    *exec.Cmd
	log    bytes.Buffer // what the process said; to be read when it has ended
	client *rpc.Client

	set   sync.Mutex // held over each change of the knobs
	knobs Knobs

	close  sync.Once
	closed error
}

// Available says why this machine cannot have such disks; nil if it can.
func Available() error { return loopdev.CanMountXFS() }

// Start makes the filesystem and mounts it at Dir/mnt, in the mount namespace of this process. ctx
// bounds the start only. When this process ends without Close, however it ends, the disk's process
// unmounts everything and ends too; the sparse file remains.
func Start(ctx context.Context, o Options) (*Disk, error) {
	if o.Size < MinSize || o.Size%blockSize != 0 {
		return nil, fmt.Errorf("slow disk: Size is %d bytes, want a multiple of %d, at least %d (mkfs.xfs takes no less)", o.Size, blockSize, MinSize)
	}
	if err := o.Knobs.check(); err != nil {
		return nil, err
	}
	if err := Available(); err != nil {
		return nil, fmt.Errorf("slow disk: %w", err)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("slow disk: Dir: %w", err)
	}
	if err := makeFiles(dir, o.Size); err != nil {
		return nil, fmt.Errorf("slow disk: %w", err)
	}
	d := &Disk{dir: dir, Mount: filepath.Join(dir, mountName)}
	if err := d.spawn(); err != nil {
		return nil, errors.Join(fmt.Errorf("slow disk: %w", err), d.remove())
	}
	err = d.call(ctx, "Disk.Ready", struct{}{}, &struct{}{})
	if err == nil {
		err = d.mount(ctx, true)
	}
	if err == nil {
		err = d.Set(ctx, o.Knobs)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func makeFiles(dir string, size int64) error {
	for _, d := range []string{dir, filepath.Join(dir, fuseName), filepath.Join(dir, mountName)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, imageName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // never another disk's
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// spawn starts this program once more as the server, connected by a pair of sockets.
func (d *Disk) spawn() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return err
	}
	d.cmd = exec.Command("/proc/self/exe")
	d.cmd.Args = []string{"gemel-slowdisk", d.dir}
	d.cmd.Env = append(os.Environ(), serveEnv+"="+d.dir)
	d.cmd.Stderr = &d.log
	d.cmd.ExtraFiles = []*os.File{theirs} // controlFD
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := resident.StartFlusher(d.cmd); err != nil {
		_ = conn.Close()
		return err
	}
	d.PID, d.client = d.cmd.Process.Pid, rpc.NewClient(conn)
	return nil
}

// mount mounts the filesystem on a loop device, and makes it before if it is to be new. The mount
// holds the device in the end, and the device the FUSE filesystem.
func (d *Disk) mount(ctx context.Context, makeNew bool) error {
	f, err := os.OpenFile(filepath.Join(d.dir, fuseName, fileName(d.PID)), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("slow disk: %w", err)
	}
	defer f.Close()
	loop, err := loopdev.Attach(f, true)
	if err != nil {
		return fmt.Errorf("slow disk: %w", err)
	}
	defer loop.Close()
	if makeNew {
		// The file has never been written: there is nothing to discard.
		mkfs := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-K", "-m", "reflink=1", loop.Name())
		mkfs.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if out, err := mkfs.CombinedOutput(); err != nil {
			return fmt.Errorf("slow disk: mkfs.xfs: %w: %s", err, out)
		}
	}
	if err := unix.Mount(loop.Name(), d.Mount, "xfs", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("slow disk: mount %s at %s: %w", loop.Name(), d.Mount, err)
	}
	return nil
}

// call calls the server, which answers at once: it never waits for requests of the disk.
func (d *Disk) call(ctx context.Context, method string, in, out any) error {
	c := d.client.Go(method, in, out, make(chan *rpc.Call, 1))
	select {
	case <-c.Done:
		if c.Error != nil {
			return fmt.Errorf("slow disk: %s: %w", method, c.Error)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("slow disk: %s: %w", method, context.Cause(ctx))
	}
}

// Set replaces all knobs. It has applied when it returns.
func (d *Disk) Set(ctx context.Context, k Knobs) error {
	if err := k.check(); err != nil {
		return err
	}
	d.set.Lock()
	defer d.set.Unlock()
	if err := d.call(ctx, "Disk.Set", k, &struct{}{}); err != nil {
		return err
	}
	d.knobs = k
	return nil
}

// Remount unmounts the filesystem and mounts it again: one that has shut itself down works again,
// and what only the page cache held is gone, as far as the disk did not take it. The knobs stay as
// they are. It fails where something uses the filesystem for more than five seconds. Not to be
// called beside Close, Replace or itself.
func (d *Disk) Remount(ctx context.Context) error {
	if err := unmount(d.Mount, usedLimit); err != nil {
		return err
	}
	return d.mount(ctx, false)
}

// Replace puts another disk in the place of this one, with an empty filesystem. See Remount.
func (d *Disk) Replace(ctx context.Context) error {
	if err := unmount(d.Mount, usedLimit); err != nil {
		return err
	}
	if err := wipe(filepath.Join(d.dir, imageName)); err != nil {
		return fmt.Errorf("slow disk: %w", err)
	}
	return d.mount(ctx, true)
}

// wipe makes a file a hole of its size.
func wipe(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	return errors.Join(os.Truncate(name, 0), os.Truncate(name, info.Size()))
}

// Stats counts the requests of the disk.
func (d *Disk) Stats(ctx context.Context) (Stats, error) {
	var s Stats
	err := d.call(ctx, "Disk.Stats", struct{}{}, &s)
	return s, err
}

// Close resets the knobs, unmounts the filesystem, detaches the loop device, waits for the process
// to end and removes the sparse file. Where something still uses the filesystem after five seconds
// the error says so; all of it goes nevertheless, and the user gets EIO.
func (d *Disk) Close() error {
	d.close.Do(func() {
		_ = d.client.Close()
		var killed atomic.Bool
		limit := time.AfterFunc(closeLimit, func() {
			killed.Store(true)
			_ = d.cmd.Process.Kill()
		})
		err := d.cmd.Wait()
		limit.Stop()
		if killed.Load() {
			err = fmt.Errorf("it did not end within %v and was killed", closeLimit)
		}
		if err != nil {
			err = fmt.Errorf("slow disk: process %d: %w: %s", d.PID, err, strings.TrimSpace(d.log.String()))
		}
		d.closed = errors.Join(err, d.remove())
	})
	return d.closed
}

// remove takes away the files, but nothing that is still a mount point.
func (d *Disk) remove() error {
	var err error
	for _, name := range []string{mountName, fuseName, imageName} {
		if e := os.Remove(filepath.Join(d.dir, name)); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("slow disk: %w", e))
		}
	}
	return err
}
