package targetv1_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

func TestHoldOfATransfer(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 24*time.Hour + time.Second, 1500 * time.Millisecond} {
		if _, err := targetv1.HoldSeconds(d); err == nil || !strings.Contains(err.Error(), "from 0s to 24h") || !strings.Contains(err.Error(), "pin it") {
			t.Errorf("%v: %v", d, err)
		}
	}
	for d, want := range map[time.Duration]uint32{0: 0, 90 * time.Second: 90, 24 * time.Hour: 86400} {
		if s, err := targetv1.HoldSeconds(d); err != nil || *s != want {
			t.Errorf("%v: %v %v", d, s, err)
		}
	}
	r := &targetv1.TransferOwnershipResponse{}
	if s := r.Holds(); s != "the transfer does not hold" {
		t.Error(s)
	}
	r.HeldUntil = timestamppb.New(time.Unix(0, 0))
	if s := r.Holds(); s != "the transfer holds until 1970-01-01T00:00:00Z" {
		t.Error(s)
	}
}
