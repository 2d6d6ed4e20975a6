package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
)

// mountAt returns the topmost mount at a path, nil if nothing is mounted there. It reads the mount
// table only, so a dead filesystem cannot block it.
func mountAt(path string) (*mountinfo.Info, error) {
	list, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(resolve(path)))
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	if len(list) == 0 {
		return nil, nil
	}
	// SingleEntryFilter stops at the first mount; a later one is on top of it.
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != resolve(path), false })
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[len(all)-1], nil
}

// resolve follows symbolic links of the parent folder, as in the mount table; the path itself may
// be dead.
func resolve(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, filepath.Base(path))
}

// shows reports whether a mount is a filesystem on the device.
func shows(m *mountinfo.Info, rdev uint64) bool {
	return m != nil && m.Major == int(unix.Major(rdev)) && m.Minor == int(unix.Minor(rdev))
}

// isDevice reports whether a path is a node of the device.
func isDevice(path string, rdev uint64) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == rdev
}

// readOnly reports whether this mount, or the filesystem under it, rejects writes.
func readOnly(m *mountinfo.Info) bool {
	return hasOption(m.Options, "ro") || hasOption(m.VFSOptions, "ro")
}

func hasOption(list, want string) bool {
	for o := range strings.SplitSeq(list, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// unmountAll unmounts a path until nothing is mounted there. It is bounded by the context; a
// filesystem that still writes is bounded by its device's I/O deadline.
func unmountAll(ctx context.Context, path string, lazy bool) error {
	done := make(chan error, 1)
	go func() {
		for {
			m, err := mountAt(path)
			if m == nil || err != nil {
				done <- err
				return
			}
			err = unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW)
			if err != nil && lazy {
				err = unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
			}
			if errors.Is(err, unix.EBUSY) {
				err = fmt.Errorf("%w: %w", attach.ErrBusy, err)
			}
			if err != nil {
				done <- fmt.Errorf("unmount %s: %w", path, err)
				return
			}
		}
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("unmount %s: %w", path, context.Cause(ctx))
	}
}

// removePath removes what publish created at a target path. It is not recursive.
func removePath(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("target path: %w", err)
	}
	return nil
}

// absolute checks a path of a request. "It MUST be an absolute path in the root filesystem of the
// process serving this request."
func absolute(field, path string) error {
	switch {
	case path == "":
		return invalid("%s is missing", field)
	case !filepath.IsAbs(path) || strings.ContainsRune(path, 0):
		return invalid("%s %q is not an absolute path", field, path)
	case filepath.Clean(path) == "/":
		return invalid("%s must not be the root folder", field)
	}
	return nil
}

func failedPrecondition(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}
