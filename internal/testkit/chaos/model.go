package chaos

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// key is a block of a LUN.
type key struct {
	lun   int
	block int64
}

func (k key) String() string { return fmt.Sprintf("LUN %d block %d", k.lun, k.block) }

// Values say which block they were written to, in their low bits: one that is found in another
// block was never written there.
const tagBits = 16

func (k key) tag() uint64 {
	x := uint64(k.lun+1)<<48 ^ uint64(k.block)
	x *= 0x9e3779b97f4a7c15
	return x >> (64 - tagBits)
}

// owns tells whether a value may have been written to the block, at whatever time; 0 is what it
// held before any was.
func (k key) owns(v uint64) bool { return v == 0 || v&(1<<tagBits-1) == k.tag() }

// anomaly is a block whose history has no explanation.
type anomaly struct {
	key     key
	unknown bool // the check did not end
	lost    bool // an acknowledged write is gone
	text    string
}

func (a anomaly) String() string {
	what := "is not linearizable"
	switch {
	case a.unknown:
		what = "could not be checked in time"
	case a.lost:
		what = "lost an acknowledged write"
	}
	return fmt.Sprintf("%v %s:\n%s", a.key, what, a.text)
}

// check judges what happened to one block since it held first.
func check(k key, first uint64, ops []porcupine.Operation) *anomaly {
	a := register.Check(first, ops)
	if a == nil {
		return nil
	}
	return &anomaly{key: k, unknown: a.Unknown, lost: a.Lost, text: a.Text}
}
