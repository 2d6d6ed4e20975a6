package pair

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/indexed"
)

// The status is that of the node that decides, with the last moves of both nodes, and keeps what it
// has while no node knows more.
func TestOwnershipInStatus(t *testing.T) {
	s, p := runtime.NewScheme(), &v1alpha1.TargetPair{}
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	p.Name = "p0"
	lu := &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: "p0", UUID: "u3"}}}
	lu.Name = "lun-3"
	c := indexed.Client(fake.NewClientBuilder().WithScheme(s).WithObjects(lu).Build())
	r := &Reconciler{Client: c}
	move := func(n int64) *targetv1.OwnershipMove {
		return &targetv1.OwnershipMove{Lun: fmt.Sprintf("u%d", n), FromNode: "a", ToNode: "b", Reason: "FailBack", Text: "because", Time: &timestamppb.Timestamp{Seconds: n}}
	}
	v := &view{}
	if got := r.ownership(t.Context(), p, v); got != nil {
		t.Errorf("no node answers: %+v", got)
	}
	v.nodes[0].status = &targetv1.Status{Ownership: &targetv1.Ownership{Mode: "off", DrainedNode: "b", DrainReason: "restart", Held: 3, HeldUntil: &timestamppb.Timestamp{Seconds: 99}, Moves: []*targetv1.OwnershipMove{move(2), move(4)}}}
	v.nodes[1].status = &targetv1.Status{Ownership: &targetv1.Ownership{Mode: "observe", FailBackDelay: durationpb.New(time.Minute), PolicyVersion: 7, Decides: true, Away: 2, WaitsFor: "hosts", Moves: []*targetv1.OwnershipMove{move(1), move(3)}}}
	got := r.ownership(t.Context(), p, v)
	if got.Mode != "Observe" || got.FailBackDelay.Duration != time.Minute || got.PolicyVersion != 7 {
		t.Errorf("%+v", got)
	}
	if got.Away != 2 || got.WaitsFor != "hosts" || got.DrainedNode != "b" || got.DrainReason != "restart" || got.Held != 3 || got.HeldUntil.Unix() != 99 || len(got.Moves) != 4 || got.Moves[2].LogicalUnit != "lun-3" ||
		got.Moves[3].UUID != "u4" || got.Moves[3].Time.Unix() != 4 || got.Moves[0].Message != "because" {
		t.Errorf("%+v", got)
	}
	p.Status.Ownership = got
	for n := int64(5); n < 20; n++ {
		v.nodes[1].status.Ownership.Moves = append(v.nodes[1].status.Ownership.Moves, move(n))
	}
	if got = r.ownership(t.Context(), p, v); len(got.Moves) != movesShown || got.Moves[7].UUID != "u19" {
		t.Errorf("%+v", got.Moves)
	}
	v.nodes[0].status, v.nodes[1].status = &targetv1.Status{}, &targetv1.Status{}
	if got = r.ownership(t.Context(), p, v); got != p.Status.Ownership {
		t.Errorf("releases that decide nothing: %+v", got)
	}
	v.nodes[1].status = &targetv1.Status{Ownership: &targetv1.Ownership{Decides: true}}
	if got = r.ownership(t.Context(), p, v); got.Away != 0 || len(got.Moves) != 4 {
		t.Errorf("new processes: %+v", got)
	}
}
