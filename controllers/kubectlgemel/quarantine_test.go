package kubectlgemel

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// released is a pair that ends quarantines.
type released struct {
	transferred
	luns []string
}

func (x *released) connect(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, func(), error) {
	x.node = node
	return x, func() {}, nil
}

func (x *released) ModifyLUN(_ context.Context, q *targetv1.ModifyLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	if err := x.fail[x.node]; err != nil || !q.EndQuarantine {
		return nil, err
	}
	x.luns = append(x.luns, q.Uuid)
	return &targetv1.LUN{}, nil
}

func TestEndQuarantine(t *testing.T) {
	x, w := &released{}, world()
	w["lun"].(*v1alpha1.LogicalUnit).Spec.Placement.UUID = "u-1"
	run := func(names ...string) (string, error) {
		var out bytes.Buffer
		c := EndQuarantine{Client: clientOf(w), Control: x.connect, Out: &out}
		err := c.Run(t.Context(), names...)
		return out.String(), err
	}
	out, err := run("lun-1")
	if err != nil || out != "lun-1: hosts can use it again\n" || !slices.Equal(x.luns, []string{"u-1"}) {
		t.Errorf("%v, %q, %v", err, out, x.luns)
	}
	x.fail = map[string]error{"a": status.Error(codes.Unavailable, "it is away")}
	if _, err := run("lun-1"); err != nil || x.node != "b" {
		t.Errorf("the other node was not asked: %v", err)
	}
	if _, err := run("lun-2"); !errors.Is(err, ErrQuarantine) {
		t.Errorf("%v", err)
	}
}
