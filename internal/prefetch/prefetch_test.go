package prefetch

import (
	"testing"
	"unsafe"
)

// TestLineReadsNothing: an address that is not mapped, and one within an object, are both no fault,
// and nothing changes.
func TestLineReadsNothing(t *testing.T) {
	x := [64]byte{1, 2, 3}
	before := x
	Line(nil)
	Line(unsafe.Pointer(&x[3]))
	if x != before {
		t.Error("memory has changed")
	}
}
