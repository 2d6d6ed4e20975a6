package userspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/wait"
)

// loop is a loop device that is bound to our file.
type loop struct {
	number int
	path   string   // /dev/loopN
	rdev   uint64   // device number
	direct bool     // reads and writes bypass the page cache below it
	users  []string // where it is mounted, and devices stacked on it
}

// loopMajor is the block major of loop devices (admin-guide/devices.txt).
const loopMajor = 7

// findLoops returns the loop devices that are bound to the file, by its inode number and name. Both
// must match: the inode number is random, and a device whose backing file has another name is not
// ours.
func findLoops(inode uint64, file string) ([]loop, error) {
	dirs, err := filepath.Glob("/sys/block/loop[0-9]*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var out []loop
	for _, f := range dirs {
		raw, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			continue // unbound meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("loop devices: %w", err)
		}
		// After a lazy unmount the path starts at the root of the former mount.
		if filepath.Base(strings.TrimSpace(string(raw))) != file {
			continue
		}
		name := strings.Split(f, "/")[3]
		n, err := strconv.Atoi(strings.TrimPrefix(name, "loop"))
		if err != nil {
			continue
		}
		l, err := inspectLoop(n, inode)
		if err != nil {
			return nil, err
		}
		if l != nil {
			out = append(out, *l)
		}
	}
	return out, nil
}

// inspectLoop returns nil if the device is not bound to the inode.
func inspectLoop(n int, inode uint64) (*loop, error) {
	path, err := loopNode(n)
	if err != nil {
		return nil, err
	}
	d, err := os.OpenFile(path, os.O_RDONLY|syscall.O_CLOEXEC, 0)
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("loop device: %w", err)
	}
	defer func() { _ = d.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(d.Fd()))
	switch {
	case errors.Is(err, unix.ENXIO):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("loop device %s: status: %w", path, err)
	case info.Inode != inode:
		return nil, nil
	}
	return &loop{number: n, path: path, rdev: unix.Mkdev(loopMajor, uint32(n)), direct: info.Flags&unix.LO_FLAGS_DIRECT_IO != 0}, nil
}

// loopNode returns the path of a loop device, and creates the node if udev does not.
func loopNode(n int) (string, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(loopMajor, uint32(n))))
		if errors.Is(err, unix.EEXIST) || err == nil {
			err = unix.Stat(path, &st)
		}
	}
	if err != nil {
		return "", fmt.Errorf("loop device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != unix.Mkdev(loopMajor, uint32(n)) {
		return "", fmt.Errorf("loop device: %s is another device", path)
	}
	return path, nil
}

// bindLoop binds a free loop device to the file, with the block size of the LUN: a filesystem with
// 512-byte sectors cannot be mounted from a device with 4096-byte sectors, so the block size must
// be the same for every way of attaching.
func bindLoop(ctx context.Context, file string, blockSize uint32, readOnly bool) (int, error) {
	mode, flags := os.O_RDWR, uint32(unix.LO_FLAGS_DIRECT_IO)
	if readOnly {
		mode, flags = os.O_RDONLY, flags|unix.LO_FLAGS_READ_ONLY
	}
	f, err := os.OpenFile(file, mode|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("loop device: %w", err)
	}
	defer func() { _ = f.Close() }()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("loop device: %w", err)
	}
	defer func() { _ = ctl.Close() }()
	for ctx.Err() == nil {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return 0, fmt.Errorf("loop device: none is free: %w", err)
		}
		path, err := loopNode(n)
		if err != nil {
			return 0, err
		}
		d, err := os.OpenFile(path, mode|syscall.O_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("loop device: %w", err)
		}
		c := unix.LoopConfig{Fd: uint32(f.Fd()), Size: blockSize, Info: unix.LoopInfo64{Flags: flags}}
		copy(c.Info.File_name[:len(c.Info.File_name)-1], filepath.Base(file))
		err = unix.IoctlLoopConfigure(int(d.Fd()), &c)
		_ = d.Close()
		if errors.Is(err, unix.EBUSY) {
			continue // another process was faster
		}
		if err != nil {
			return 0, fmt.Errorf("loop device %s: configure: %w", path, err)
		}
		return n, nil
	}
	return 0, ctx.Err()
}

// resizeLoop grows the device to the size of its file.
func resizeLoop(ctx context.Context, l loop, file string, size int64) (int64, error) {
	if err := awaitInodeSize(ctx, file, size); err != nil {
		return 0, fmt.Errorf("loop device: %w", err)
	}
	d, err := os.OpenFile(l.path, os.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("loop device: %w", err)
	}
	defer func() { _ = d.Close() }()
	if err := unix.IoctlSetInt(int(d.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return 0, fmt.Errorf("loop device %s: set capacity: %w", l.path, err)
	}
	return loopSize(l.number)
}

// awaitInodeSize waits until the kernel's inode of a FUSE file has a size. stat does not show it:
// the kernel returns the size of the file server, but does not store it in the inode if a write has
// ended meanwhile (fuse_change_attributes and its attr_version), and the next direct read beyond
// the old size is empty, which the loop driver converts to EIO. Seeking to the end updates and uses
// the inode.
func awaitInodeSize(ctx context.Context, file string, size int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var end int64
	if perr := poll(ctx, 10*time.Second, func() bool {
		end, err = f.Seek(0, io.SeekEnd)
		return err != nil || end == size
	}); perr != nil {
		return fmt.Errorf("%s has %d bytes, want %d: %w", file, end, size, perr)
	}
	return err
}

// loopSize reads the size in bytes from sysfs, which needs no I/O.
func loopSize(n int) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/size", n))
	if err != nil {
		return 0, err
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return sectors * 512, err // sysfs counts in 512-byte sectors whatever the block size
}

// flushLoop writes buffered data. It ends with the context; the flush itself ends at the device's
// I/O deadline or with its holder.
func flushLoop(ctx context.Context, l loop) error {
	return wait.Bounded(ctx, "flush of "+l.path, func() error {
		d, err := os.OpenFile(l.path, os.O_RDWR|syscall.O_CLOEXEC, 0)
		if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EROFS) {
			return nil // read-only: there is nothing to flush
		}
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	})
}

// clearLoop unbinds the device and waits until it is unbound. It stays bound while another process
// has it open.
func clearLoop(ctx context.Context, l loop, inode uint64) error {
	err := wait.Bounded(ctx, "release of "+l.path, func() error {
		d, err := os.OpenFile(l.path, os.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		// Between finding and opening, the device may have been released and bound by another
		// process.
		info, err := unix.IoctlLoopGetStatus64(int(d.Fd()))
		if errors.Is(err, unix.ENXIO) || err == nil && info.Inode != inode {
			return d.Close()
		}
		err = unix.IoctlSetInt(int(d.Fd()), unix.LOOP_CLR_FD, 0)
		if errors.Is(err, unix.ENXIO) {
			err = nil
		}
		return errors.Join(err, d.Close())
	})
	if err != nil {
		return err
	}
	return poll(ctx, 2*time.Second, func() bool {
		again, err := inspectLoop(l.number, inode)
		return err == nil && again == nil
	})
}
