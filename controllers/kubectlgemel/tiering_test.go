package kubectlgemel

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// tiered is a pair with a pool of two tiers.
type tiered struct {
	transferred
	luns []string
}

func (x *tiered) connect(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, func(), error) {
	x.node = node
	return x, func() {}, nil
}

func (x *tiered) GetTiering(_ context.Context, q *targetv1.GetTieringRequest, _ ...grpc.CallOption) (*targetv1.GetTieringResponse, error) {
	if err := x.fail[x.node]; err != nil {
		return nil, err
	}
	r := &targetv1.GetTieringResponse{Mode: "observe", Volumes: []*targetv1.TieredVolume{{Volume: "default", Fast: &targetv1.TierUse{Reads: 3}, Capacity: &targetv1.TierUse{Reads: 1}}}}
	for i := range 7 {
		r.Moves = append(r.Moves, &targetv1.TierMove{Time: timestamppb.Now(), Lun: "u", Extent: uint64(i), To: "fast", Reason: "heat", Rate: 2, Observed: true})
	}
	if q.LunUuid != "" {
		x.luns = append(x.luns, x.node+" "+q.LunUuid)
		r.Heat = &targetv1.LUNHeat{Lun: q.LunUuid, Pin: "none", Extents: 2, Parts: []*targetv1.HeatPart{{Rate: 1, Fast: 1}, {}}}
	}
	return r, nil
}

func TestTiering(t *testing.T) {
	x, w := &tiered{}, world()
	w["lun"].(*v1alpha1.LogicalUnit).Spec.Placement.UUID = "u-1"
	var out bytes.Buffer
	c := Tiering{Client: clientOf(w), Control: x.connect, Out: &out, Moves: 2}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for want, n := range map[string]int{"node a, pool ": 1, "node b, pool ": 1, "tiering observe": 2, "75.0 %": 2, "would move extent 6 of LUN u to fast": 2, "extent 5": 2, "extent 4": 0} {
		if strings.Count(out.String(), want) != n {
			t.Errorf("%q is not %d times in\n%s", want, n, out.String())
		}
	}
	if err := c.Run(t.Context(), "nowhere"); !errors.Is(err, ErrTiering) || !strings.Contains(err.Error(), "does not exist") {
		t.Error(err)
	}
	x.fail = map[string]error{"a": status.Error(codes.Unimplemented, "it is old")}
	out.Reset()
	if err := c.Run(t.Context()); !errors.Is(err, ErrTiering) || !strings.Contains(err.Error(), "node a: ") || !strings.Contains(out.String(), "node b") {
		t.Errorf("%v: %s", err, out.String())
	}
	x.fail = nil
	out.Reset()
	if err := c.Claim(t.Context(), "app", "data"); err != nil || strings.Join(x.luns, " ") != "a u-1 b u-1" || strings.Count(out.String(), "LUN u-1, 8.0 MiB, pinned to none") != 2 || strings.Count(out.String(), "(owner)") != 1 {
		t.Errorf("%v, %v: %s", err, x.luns, out.String())
	}
	if err := c.Claim(t.Context(), "app", "none"); !errors.Is(err, ErrTiering) || !strings.Contains(err.Error(), "app/none") {
		t.Error(err)
	}
}
