package chaos

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/gemel-storage/gemel/e2e/register"
)

// key is a block of a LUN.
type key struct {
	lun   int
	block int64
}

func (k key) String() string { return fmt.Sprintf("LUN %d block %d", k.lun, k.block) }

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
