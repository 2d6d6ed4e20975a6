// Package loopdev binds files to loop devices for tests and tools, and says whether this machine
// can do so. The userspace attach of the node plugin has its own (csi/attach/userspace), which has
// to find a device again after a restart.
package loopdev

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Attach binds a free loop device to a file. The device detaches automatically when it is closed
// for the last time; a mounted filesystem holds it open. With direct, it reads and writes the file
// by direct I/O, several requests at a time; an error says that the file's filesystem cannot do
// that.
func Attach(f *os.File, direct bool) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for range 64 { // others look for a free one at the same time
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		loop, err := open(n)
		if err != nil {
			return nil, err
		}
		err = configure(loop, f, direct)
		if err == nil {
			return loop, nil
		}
		_ = loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("%s: %w", loop.Name(), err)
		}
	}
	return nil, errors.New("loop devices are taken faster than they can be found")
}

func open(n int) (*os.File, error) {
	name := fmt.Sprintf("/dev/loop%d", n)
	loop, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // a /dev without devtmpfs, as in many containers
		err = unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n))))
		if err == nil || errors.Is(err, os.ErrExist) {
			loop, err = os.OpenFile(name, os.O_RDWR, 0)
		}
	}
	return loop, err
}

func configure(loop, f *os.File, direct bool) error {
	cfg := unix.LoopConfig{Fd: uint32(f.Fd())}
	cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	if direct {
		cfg.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], f.Name())
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &cfg); err != nil || !direct {
		return err
	}
	info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
	if err == nil && info.Flags&unix.LO_FLAGS_DIRECT_IO == 0 { // the kernel falls back without an error
		err = fmt.Errorf("%s cannot be read and written by direct I/O", f.Name())
	}
	return err
}

// On lists the loop devices whose file is at or below a path.
func On(path string) ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if file := strings.TrimSuffix(string(b), "\n"); err == nil && (file == path || strings.HasPrefix(file, path+"/")) {
			out = append(out, "/dev/"+strings.Split(f, "/")[3])
		}
	}
	return out, nil
}

// CanMountXFS says why XFS images and FUSE mounts are out of reach; nil if they are not.
func CanMountXFS() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	for _, d := range []string{"/dev/loop-control", "/dev/fuse"} {
		f, err := os.OpenFile(d, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		return errors.New("mkfs.xfs is missing (Debian package xfsprogs)")
	}
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(string(b)), "xfs") {
		return errors.New("this kernel has no XFS")
	}
	return nil
}
