package initiator

import (
	"fmt"
	"math"
)

// geometry is what a device knows about its unit. It is immutable; a change makes a new one.
type geometry struct {
	size        int64 // bytes
	blockSize   int
	maxTransfer int   // bytes per READ or WRITE
	maxUnmap    int64 // bytes per UNMAP command; 0: unmap is not supported
	maxSame     int64 // bytes per WRITE SAME
}

// largestTransfer bounds one READ or WRITE, in bytes, where the target reports no limit or a higher
// one.
const largestTransfer = 4 << 20

// largestRange bounds one UNMAP or WRITE SAME, in bytes, likewise: it keeps a command well below
// its timeout.
const largestRange = 256 << 20

func newGeometry(c capacity, l limits) *geometry {
	bs := int64(c.blockSize)
	bytes := func(blocks uint64, cap int64) int64 {
		if blocks == 0 || blocks > uint64(cap/bs) {
			return cap
		}
		return int64(blocks) * bs
	}
	g := &geometry{size: int64(c.blocks) * bs, blockSize: c.blockSize}
	g.maxTransfer = int(bytes(uint64(l.maxTransfer), largestTransfer))
	g.maxSame = bytes(l.maxWriteSame, largestRange)
	if l.unmap {
		g.maxUnmap = bytes(uint64(l.maxUnmap), largestRange)
	}
	return g
}

// check refuses what a block device cannot do.
func (g *geometry) check(off, n int64) error {
	bs := int64(g.blockSize)
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return fmt.Errorf("initiator: offset %d, length %d: %w", off, n, ErrBeyondEnd)
	}
	if off%bs != 0 || n%bs != 0 {
		return fmt.Errorf("initiator: offset %d, length %d: %w of %d: read, change and write whole blocks",
			off, n, ErrUnaligned, bs)
	}
	if off+n > g.size {
		return fmt.Errorf("initiator: offset %d, length %d: %w (%d bytes): call Rescan after an expansion",
			off, n, ErrBeyondEnd, g.size)
	}
	return nil
}
