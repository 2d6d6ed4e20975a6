package store

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors that callers decide by. What the operating system said is wrapped beside them.
var (
	// ErrLocked: another process has the directory open.
	ErrLocked = errors.New("the store is in use by another process")
	// ErrForeign: the directory belongs to another cluster, pair or node, or is not a store at all.
	ErrForeign = errors.New("the store is not this node's")
	// ErrNewer: the directory was written by a newer version.
	ErrNewer = errors.New("the store has a newer format")
	// ErrDamaged: the metadata database is not what was written, or cannot be read.
	ErrDamaged = errors.New("the metadata database is damaged")
	// ErrMissing: there is a store, and no metadata database in it.
	ErrMissing = errors.New("the metadata database is missing")
	// ErrNotFound: no LUN or snapshot with that uuid.
	ErrNotFound = errors.New("no such object")
	// ErrNoVolume: no backing volume with that name.
	ErrNoVolume = errors.New("this node has no backing volume")
	// ErrExists: there is one, but of another size.
	ErrExists = errors.New("the object already exists with another size")
	// ErrOccupied: what has the name of an object that is to be made can be neither removed nor set
	// aside.
	ErrOccupied = errors.New("the file name of the new object is taken")
	// ErrShrink: LUNs only grow.
	ErrShrink = errors.New("a LUN cannot shrink")
	// ErrBadUUID: not an RFC 9562 uuid in lower case.
	ErrBadUUID = errors.New("not a lower-case uuid")
	// ErrRange: the bytes asked for are outside the file.
	ErrRange = errors.New("outside the object")
	// ErrNoSpace: ENOSPC or EDQUOT. The store stays trusted: the operation failed, nothing else
	// did.
	ErrNoSpace = errors.New("no space left in the backing volume")
	// ErrMedia: any other error of the backing volume.
	ErrMedia = errors.New("backing volume error")
	// ErrChecksum: blocks are not what was written, see ChecksumError. The store stays trusted.
	ErrChecksum = errors.New("the content is not what was written")
	// ErrFailed: a write or flush failed earlier, so what the store holds is no longer known. It is
	// final for this process: every later write and flush fails with it.
	ErrFailed = errors.New("the store has failed and is not trusted")
)

// classify puts ErrNoSpace or ErrMedia around an operating system error.
func classify(op, path string, err error) error {
	class := ErrMedia
	if noSpace(err) {
		class = ErrNoSpace
	}
	return fmt.Errorf("%s %s: %w: %w", op, path, class, err)
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
