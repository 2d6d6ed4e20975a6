package loopdev

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// MountXFS makes a filesystem of so many bytes in a sparse file, with reflink, and mounts it at
// dir, which it makes. The mount holds the loop device, and autoclear detaches the device with it.
func MountXFS(ctx context.Context, image, dir string, size int64, direct bool) error {
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	mkfs := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-m", "reflink=1", image)
	mkfs.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is the demo's to handle: it ends ctx
	if b, err := mkfs.CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.xfs: %w: %s", err, b)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	loop, err := Attach(f, direct)
	if err != nil {
		return err
	}
	defer loop.Close()
	if err := unix.Mount(loop.Name(), dir, "xfs", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", loop.Name(), dir, err)
	}
	return nil
}
