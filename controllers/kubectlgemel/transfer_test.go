package kubectlgemel

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// transferred is a pair that moves LUNs.
type transferred struct {
	targetv1.TargetServiceClient
	asked []*targetv1.TransferOwnershipRequest
	fail  map[string]error // by node
	node  string
	open  int
}

func (x *transferred) connect(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, func(), error) {
	x.node = node
	x.open++
	return x, func() { x.open-- }, nil
}

func (x *transferred) TransferOwnership(_ context.Context, q *targetv1.TransferOwnershipRequest, _ ...grpc.CallOption) (*targetv1.TransferOwnershipResponse, error) {
	if err := x.fail[x.node]; err != nil {
		return nil, err
	}
	x.asked = append(x.asked, q)
	r := &targetv1.TransferOwnershipResponse{Moved: 1}
	if q.GetHoldSeconds() > 0 {
		r.HeldUntil = timestamppb.New(time.Unix(int64(*q.HoldSeconds), 0))
	}
	return r, nil
}

// The command says until when the transfer holds, and what comes after.
func TestTransferSaysUntilWhenItHolds(t *testing.T) {
	x, w := &transferred{}, world()
	lu := w["lun"].(*v1alpha1.LogicalUnit)
	lu.Spec.Placement.UUID, lu.Spec.PreferredNode = "u-1", "a"
	run := func(c Transfer, names ...string) (string, error) {
		var out bytes.Buffer
		c.Client, c.Control, c.Out = clientOf(w), x.connect, &out
		err := c.Run(t.Context(), names...)
		if x.open != 0 {
			t.Errorf("%d connections are still open", x.open)
		}
		return out.String(), err
	}
	out, err := run(Transfer{To: "b", Hold: time.Hour}, "lun-1")
	if err != nil || out != "lun-1: moved to node b of pair main-p0; the transfer holds until 1970-01-01T01:00:00Z; spec.preferredNode is a, so the LUN returns to node a later\n" {
		t.Errorf("%v %s", err, out)
	}
	if q := x.asked[0]; q.ToNode != "b" || q.GetHoldSeconds() != 3600 || len(q.LunUuids) != 1 || q.LunUuids[0] != "u-1" || q.All {
		t.Errorf("%v", q)
	}
	if out, err = run(Transfer{To: "a"}, "lun-1"); err != nil || !strings.HasSuffix(out, "; the transfer does not hold\n") {
		t.Errorf("%v %s", err, out)
	}
	x.fail = map[string]error{"a": status.Error(codes.Unavailable, "it is away")}
	if _, err = run(Transfer{To: "b"}, "lun-1"); err != nil || x.node != "b" {
		t.Errorf("the other node was not asked: %v", err)
	}
	x.fail = map[string]error{"a": status.Error(codes.FailedPrecondition, "it is drained")}
	if _, err = run(Transfer{To: "b"}, "lun-1"); !errors.Is(err, ErrTransfer) || !strings.Contains(err.Error(), "it is drained") || x.node != "a" {
		t.Errorf("%v", err)
	}
	for want, c := range map[string]Transfer{"--to": {To: "c"}, "--hold": {To: "a", Hold: 25 * time.Hour}} {
		if _, err := run(c, "lun-1"); !errors.Is(err, ErrTransfer) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := run(Transfer{To: "a"}, "lun-2"); !errors.Is(err, ErrTransfer) || !strings.Contains(err.Error(), "lun-2") {
		t.Errorf("%v", err)
	}
}
