package targetv1

import (
	"fmt"
	"time"
)

// MaxHold is how long a transfer may hold.
const MaxHold = 24 * time.Hour

// HoldSeconds is hold_seconds of a TransferOwnershipRequest.
func HoldSeconds(d time.Duration) (*uint32, error) {
	if d < 0 || d > MaxHold || d%time.Second != 0 {
		return nil, fmt.Errorf("%v is not a number of whole seconds from 0s to %v: to keep a LUN at a node for longer, pin it", d, MaxHold)
	}
	s := uint32(d / time.Second)
	return &s, nil
}

// Holds says in words how long a transfer holds.
func (r *TransferOwnershipResponse) Holds() string {
	if r.GetHeldUntil() == nil {
		return "the transfer does not hold"
	}
	return "the transfer holds until " + r.HeldUntil.AsTime().Format(time.RFC3339)
}
