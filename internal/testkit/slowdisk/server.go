package slowdisk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/rpc"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// serveEnv marks the process that is the server; its value is the disk's folder.
const serveEnv = "GEMEL_SLOWDISK_SERVE"

// Names in the disk's folder.
const (
	imageName = "image" // the sparse file
	fuseName  = "fuse"
	mountName = "mnt" // the XFS
)

// Limits of the server.
const (
	controlFD   = 3
	maxWrite    = 1 << 20          // bytes per FUSE request: the kernel's maximum
	background  = 1024             // asynchronous requests that the kernel may send at a time: more than the loop driver has
	maxMemory   = 512 << 20        // bytes of request buffers
	usedLimit   = 5 * time.Second  // how long the filesystem may be in use before it is detached
	copiedLimit = 30 * time.Second // how long it may live on in other mount namespaces: a container that starts has it for a moment
)

// The server is whatever program uses this package, a test binary as well: it starts itself again,
// and this is where that copy begins. It does not get to main.
func init() {
	dir, ok := os.LookupEnv(serveEnv)
	if !ok {
		return
	}
	if err := serve(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// control is what the parent can call.
type control struct{ gate *gate }

// Ready answers once the FUSE filesystem is mounted.
func (c *control) Ready(struct{}, *struct{}) error { return nil }

// Set changes all knobs.
func (c *control) Set(k Knobs, _ *struct{}) error {
	c.gate.set(k)
	return nil
}

// Stats counts.
func (c *control) Stats(_ struct{}, out *Stats) error {
	*out = c.gate.snapshot()
	return nil
}

// serve is the life of the server: until the parent closes its end of the connection, which the
// kernel does for a parent that was killed. A parent-death signal would come when the thread that
// forked ends, which is not the same in Go. Then it takes down everything, what the parent has put
// on top as well.
func serve(dir string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM) // it ends after its parent, however that ends
	conn, err := net.FileConn(os.NewFile(controlFD, "control"))
	if err != nil {
		return fmt.Errorf("slow disk: control connection: %w", err)
	}
	image, err := os.OpenFile(filepath.Join(dir, imageName), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("slow disk: %w", err)
	}
	info, err := image.Stat()
	if err != nil {
		return fmt.Errorf("slow disk: %w", err)
	}
	g := newGate()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	f := &files{gate: g, image: image, size: uint64(info.Size()), RawFileSystem: fuse.NewDefaultRawFileSystem()}
	srv, err := fuse.NewServer(f, filepath.Join(dir, fuseName), &fuse.MountOptions{
		FsName: "slowdisk", Name: "slowdisk", DirectMountStrict: true, MaxWrite: maxWrite,
		MaxBackground: background, CongestionThreshold: background, MaxInflightRequestBytes: maxMemory,
		// Without CAP_ASYNC_DIO the kernel would wait for each direct request of the loop device
		// before the next.
		ExtraCapabilities: fuse.CAP_ASYNC_DIO, DisableXAttrs: true, DisableReadDirPlus: true, DisableSplice: true,
		Logger: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	})
	if err != nil {
		return fmt.Errorf("slow disk: fuse mount: %w", err)
	}
	go srv.Serve() // ends with the process: other mount namespaces may hold copies of the mount
	err = srv.WaitMount()
	if err == nil {
		calls := rpc.NewServer()
		err = calls.RegisterName("Disk", &control{g})
		if err == nil {
			calls.ServeConn(conn) // returns when the parent has closed it
		}
	}
	_ = conn.Close()
	g.set(Knobs{}) // nothing is stuck or fails while the filesystem is written out
	return errors.Join(err, takeDown(dir), image.Close())
}

// takeDown unmounts the XFS, whose loop device detaches with it, and the FUSE filesystem, which is
// in use until then: once that is unmounted nothing can be lost.
func takeDown(dir string) error {
	for _, m := range []struct {
		name  string
		limit time.Duration
	}{{mountName, usedLimit}, {fuseName, copiedLimit}} {
		err := unmount(filepath.Join(dir, m.name), m.limit)
		if errors.Is(err, unix.EBUSY) {
			// Hidden now, they go when the last user does. This process does not wait for it.
			return errors.Join(fmt.Errorf("slow disk: %s is in use, perhaps in another mount namespace: its users get EIO", filepath.Join(dir, m.name)),
				detach(filepath.Join(dir, mountName)), detach(filepath.Join(dir, fuseName)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unmount gives those who use it a moment. What is not mounted is fine.
func unmount(dir string, limit time.Duration) error {
	var err error
	_ = wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		return !errors.Is(err, unix.EBUSY), nil
	})
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("slow disk: unmount %s: %w", dir, err)
	}
	return nil
}

func detach(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("slow disk: detach %s: %w", dir, err)
	}
	return nil
}
