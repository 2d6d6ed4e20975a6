package node

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// The primary superblock of XFS (xfs_dsb): its magic number, and sb_inprogress, which mkfs.xfs sets with its first superblock
// and clears with its last write. mke2fs needs nothing like it: it writes its superblock last.
const (
	xfsMagic      = "XFSB"
	xfsInProgress = 126 // offset in bytes
	xfsSuperblock = 512
)

// wipeUnfinished takes away what an mkfs.xfs left that did not live to its end: the plugin's container died, or its machine. blkid
// calls that xfs, so it would never be formatted, and no kernel mounts it. Nothing can have been stored in it, since it was
// never mounted, on whichever worker. It tells whether there was something to take away. ErrBusy while an mkfs is still at work.
func wipeUnfinished(device string) (bool, error) {
	if is, err := unfinished(device); !is || err != nil {
		return false, err
	}
	// mkfs and mount open a device exclusively: with this open they are not there, and cannot come.
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return false, fmt.Errorf("%w: %s is being formatted", attach.ErrBusy, device)
	}
	if err != nil {
		return false, fmt.Errorf("an unfinished filesystem: %w", err)
	}
	defer func() { _ = f.Close() }()
	if is, err := unfinished(device); !is || err != nil {
		return false, err // it was finished meanwhile
	}
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		return false, fmt.Errorf("an unfinished filesystem: %w", err)
	}
	if err := f.Sync(); err != nil {
		return false, fmt.Errorf("an unfinished filesystem: %w", err)
	}
	return true, nil
}

func unfinished(device string) (bool, error) {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("probe: %w", err)
	}
	defer func() { _ = f.Close() }()
	var b [xfsSuperblock]byte
	_, err = f.ReadAt(b[:], 0)
	switch {
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ENODATA):
		// The first read of a volume, and so the place to say what a LUN answers that may have lost acknowledged writes (rule R8): MEDIUM
		// ERROR, which the kernel makes ENODATA of.
		return false, fmt.Errorf("%w: %s fails reads (%w): after kubectl gemel pair promote a volume answers so until it has been detached and attached again: "+
			"end its pods and start none before its VolumeAttachment is gone; else kubectl gemel why says what is wrong", attach.ErrFailed, device, err)
	case err != nil && !errors.Is(err, io.EOF):
		return false, fmt.Errorf("probe %s: %w", device, err)
	}
	return string(b[:len(xfsMagic)]) == xfsMagic && b[xfsInProgress] == 1, nil
}
