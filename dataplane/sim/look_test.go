package sim

import "testing"

// A snapshot is committed when both members have it, and one of them from the instant on.
func TestWhatFollowsFromALook(t *testing.T) {
	for _, x := range []struct {
		own, its held
		want     snapStep
	}{
		{heldSealed, heldSealed, snapCommit},
		{heldSealed, heldWhole, snapCommit},
		{heldWhole, heldSealed, snapCommit},
		{heldWhole, heldWhole, snapAbort}, // the copy that they have it from may have ended
		{heldSealed, heldVoid, snapAbort},
		{heldFailed, heldSealed, snapAbort},
		{heldPart, heldFailed, snapAbort},
		{heldPart, heldPart, 0},
		{heldSealed, heldPart, 0},
		{heldSealed, heldUnknown, 0},
		{heldUnknown, heldVoid, 0},
	} {
		if got := outcome(x.own, x.its); got != x.want {
			t.Errorf("own %d, its %d: %v, not %v", x.own, x.its, got, x.want)
		}
	}
}
