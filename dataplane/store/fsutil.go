package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// maxSmall bounds what is read of a file that should be a few lines, in bytes.
const maxSmall = 64 << 10

// errTooLong: a file that should be a few lines is not.
var errTooLong = errors.New("the file is longer than expected")

// readSmall is os.ReadFile that does not take whatever length it finds.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(raw) > maxSmall {
		err = fmt.Errorf("%s: %w", path, errTooLong)
	}
	return raw, err
}

// writeFileDurably replaces a file so that a crash leaves the old or the new content, never a part.
func writeFileDurably(path string, content []byte) error {
	tmp := path + tmpSuffix
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return fd.SyncDir(filepath.Dir(path))
}

// removeLeftovers deletes files under a temporary name, but for those to keep: objects whose
// creation a crash cut short.
func removeLeftovers(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), tmpSuffix) && !slices.Contains(keep, e.Name()) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// probeReflink finds out whether files share extents. A full disk must not keep the node from
// starting: it can read, delete, overwrite and be resynced. There a file that is there tells.
func (v *BackingVolume) probeReflink() (shares bool, err error) {
	if err = v.roomForProbe(); err == nil {
		shares, err = tryReflink(v.folder(kindLUN))
	}
	if noSpace(err) {
		return fd.With(cmp.Or(v.lock, v.s.lock), sharesExtents) == nil, nil
	}
	return shares, err
}

// roomForProbe is where a test says that there is none for one more file.
func (v *BackingVolume) roomForProbe() error {
	return v.s.fault(FaultCreate, filepath.Join(v.rel, string(kindLUN), "probe"), 0, 0)
}

// tryReflink tries FICLONE in dir.
func tryReflink(dir string) (bool, error) {
	src, err := os.CreateTemp(dir, "probe-*"+tmpSuffix)
	if err != nil {
		return false, err
	}
	defer func() { src.Close(); os.Remove(src.Name()) }()
	dst, err := os.CreateTemp(dir, "probe-*"+tmpSuffix)
	if err != nil {
		return false, err
	}
	defer func() { dst.Close(); os.Remove(dst.Name()) }()
	if _, err := src.Write(make([]byte, 4096)); err != nil {
		return false, err
	}
	err = unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	if noSpace(err) {
		return false, err
	}
	return err == nil, nil
}

// sharesExtents asks for a clone of a range onto itself, which changes nothing: filesystems that
// share extents refuse the range (EINVAL), the others the request.
func sharesExtents(d int) error {
	err := unix.IoctlFileCloneRange(d, &unix.FileCloneRange{Src_fd: int64(d), Src_length: 4096})
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
