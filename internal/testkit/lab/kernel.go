package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

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
	dir := l.Path(name)
	return dir, loopdev.MountXFS(ctx, l.Path(name+".xfs"), dir, size, direct)
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
