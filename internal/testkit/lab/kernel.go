package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/loopdev"
)

// XFS makes a filesystem of so many bytes in a sparse file, with reflink, and mounts it at
// Dir/name.
func (l *Lab) XFS(ctx context.Context, name string, size int64) (string, error) {
	return l.xfs(ctx, name, size, false)
}

// XFSDirect is XFS on a loop device that reads and writes its file past the page cache: what the
// filesystem has not cached comes from the disk, and a flush costs what the disk takes for it.
func (l *Lab) XFSDirect(ctx context.Context, name string, size int64) (string, error) {
	return l.xfs(ctx, name, size, true)
}

func (l *Lab) xfs(ctx context.Context, name string, size int64, direct bool) (string, error) {
	image, dir := l.Path(name+".xfs"), l.Path(name)
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return "", err
	}
	mkfs := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-m", "reflink=1", image)
	mkfs.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is the demo's to handle: it ends ctx
	if b, err := mkfs.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mkfs.xfs: %w: %s", err, b)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	loop, err := loopdev.Attach(f, direct)
	if err != nil {
		return "", err
	}
	// The mount holds the device from here on, and autoclear detaches it with the mount.
	defer loop.Close()
	if err := unix.Mount(loop.Name(), dir, "xfs", unix.MS_NOATIME, ""); err != nil {
		return "", fmt.Errorf("mount %s at %s: %w", loop.Name(), dir, err)
	}
	return dir, nil
}

// CanMount says why XFS images and mounts are out of reach; nil if they are not.
func CanMount() error { return loopdev.CanMountXFS() }

// mountsBelow lists mount points at or below a folder, the last mounted first.
func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 5 {
			continue
		}
		at := unescape.Replace(f[4])
		if at == dir || strings.HasPrefix(at, dir+"/") {
			out = append(out, at)
		}
	}
	slices.Reverse(out)
	return out, nil
}

// unescape undoes what proc(5) escapes in mountinfo; a file that was deleted below a mount has a
// mark.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, "//deleted", "")

func unmountAll(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		e := unix.Unmount(m, 0)
		if errors.Is(e, unix.EBUSY) {
			e = unix.Unmount(m, unix.MNT_DETACH)
		}
		if e != nil && !errors.Is(e, unix.EINVAL) && !errors.Is(e, unix.ENOENT) { // gone meanwhile
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", m, e))
		}
	}
	return err
}

func detachAll(dir string) error {
	loops, err := loopdev.On(dir)
	if err != nil {
		return err
	}
	for _, name := range loops {
		f, e := os.OpenFile(name, os.O_RDONLY, 0)
		if e == nil {
			e = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
			f.Close()
		}
		if e != nil && !errors.Is(e, unix.ENXIO) {
			err = errors.Join(err, fmt.Errorf("detach %s: %w", name, e))
		}
	}
	return err
}
