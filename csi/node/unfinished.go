package node

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// The primary superblock of XFS (xfs_dsb): its magic number, and sb_inprogress, which mkfs.xfs sets
// with its first superblock and clears with its last write. mke2fs needs nothing like it: it writes
// its superblock last.
const (
	xfsMagic      = "XFSB"
	xfsInProgress = 126 // offset in bytes
	xfsSuperblock = 512
)

// wipeUnfinished removes what an interrupted mkfs.xfs left, because the plugin's container or its
// machine crashed. blkid reports it as xfs, so it would never be formatted, and no kernel mounts
// it. It cannot contain data, because it was never mounted on any worker. The result says whether
// there was something to remove. ErrBusy while an mkfs is still running.
func wipeUnfinished(device string) (bool, error) {
	if is, err := unfinished(device); !is || err != nil {
		return false, err
	}
	// mkfs and mount open a device exclusively: while it is open here, they are not running and
	// cannot start.
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return false, fmt.Errorf("%w: %s is being formatted", attach.ErrBusy, device)
	}
	if err != nil {
		return false, fmt.Errorf("wipe an incomplete filesystem: %w", err)
	}
	defer func() { _ = f.Close() }()
	if is, err := unfinished(device); !is || err != nil {
		return false, err // completed meanwhile
	}
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		return false, fmt.Errorf("wipe an incomplete filesystem: %w", err)
	}
	if err := f.Sync(); err != nil {
		return false, fmt.Errorf("wipe an incomplete filesystem: %w", err)
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
		// This is the first read of a volume. A LUN that may have lost acknowledged writes (rule
		// R8) answers MEDIUM ERROR, which the kernel converts to ENODATA.
		return false, fmt.Errorf("%w: reads of %s fail (%w): after kubectl gemel pair promote this is so until the volume has been detached and attached again: "+
			"delete its pods, and start new ones only after its VolumeAttachment is gone; otherwise run kubectl gemel why", attach.ErrFailed, device, err)
	case err != nil && !errors.Is(err, io.EOF):
		return false, fmt.Errorf("probe %s: %w", device, err)
	}
	return string(b[:len(xfsMagic)]) == xfsMagic && b[xfsInProgress] == 1, nil
}
