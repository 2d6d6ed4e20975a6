package sim

import "fmt"

// kind of a logical operation.
type kind uint8

const (
	opRead  kind = iota
	opWrite      // WRITE
	opSame       // WRITE SAME
	opZero       // UNMAP
	opSwap       // COMPARE AND WRITE
	opFlush      // SYNCHRONIZE CACHE
)

func (k kind) writes() bool { return k != opRead && k != opFlush }

// logical is what the application asked for.
type logical struct {
	kind     kind
	fua      bool
	lun      int
	block, n int // first block, how many
	verify   uint64
	value    uint64
	start    int64
	tries    []try
	last     bool // one of the last reads
	rewrites bool // what was lost is written again
}

func (l *logical) String() string {
	name := [...]string{"read", "write", "write same", "unmap", "compare and write", "flush"}[l.kind]
	switch l.kind {
	case opFlush:
		return fmt.Sprintf("%s of LUN %d", name, l.lun+1)
	case opRead:
		return fmt.Sprintf("%s of LUN %d block %d+%d", name, l.lun+1, l.block, l.n)
	case opSwap:
		return fmt.Sprintf("%s of LUN %d block %d from %d to %d", name, l.lun+1, l.block, l.verify, l.value)
	}
	return fmt.Sprintf("%s of LUN %d block %d+%d value %d", name, l.lun+1, l.block, l.n, l.value)
}

// try is one attempt as the history sees it.
type try struct {
	start int64
	none  bool // it cannot have taken effect
}
