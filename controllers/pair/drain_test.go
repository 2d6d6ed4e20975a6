package pair

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// drains is the drain of a pair, in front of its real nodes: Drain moves the LUNs with
// TransferOwnership, and the status of both nodes shows the drain. It moves no LUN home.
type drains struct {
	mu      sync.Mutex
	earlier bool                // the nodes are of a release without Drain
	fail    codes.Code          // of Drain
	stands  *targetv1.Ownership // nil: no node is drained
	calls   []string            // Drain that succeeded, and TransferOwnership that was not refused
}

// drainer is one node of the pair.
type drainer struct {
	targetv1.TargetServiceClient
	d *drains
}

func (x drainer) Drain(ctx context.Context, q *targetv1.DrainRequest, _ ...grpc.CallOption) (*targetv1.DrainResponse, error) {
	x.d.mu.Lock()
	defer x.d.mu.Unlock()
	switch {
	case x.d.earlier:
		return nil, status.Error(codes.Unimplemented, "unknown method Drain")
	case x.d.fail != codes.OK:
		return nil, status.Error(x.d.fail, "injected by the test")
	case !slices.Contains(Nodes, q.Node) || q.Seconds > 3600 || len(q.Reason) > 256:
		return nil, status.Error(codes.InvalidArgument, q.String())
	}
	x.d.calls = append(x.d.calls, fmt.Sprintf("drain %s %d", q.Node, q.Seconds))
	if q.Seconds == 0 {
		if x.d.stands.GetDrainedNode() == q.Node {
			x.d.stands = nil
		}
		return &targetv1.DrainResponse{}, nil
	}
	x.d.stand(q.Node, time.Duration(q.Seconds)*time.Second, q.Reason)
	// A renewal through the other node, or without LUNs, moves nothing.
	s, err := x.TargetServiceClient.GetStatus(ctx, &targetv1.GetStatusRequest{})
	if err != nil || s.Node != q.Node || len(s.OwnedLuns) == 0 {
		return &targetv1.DrainResponse{}, err
	}
	t, err := x.TargetServiceClient.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: Other(q.Node)})
	return &targetv1.DrainResponse{Moved: t.GetMoved()}, err
}

func (x drainer) TransferOwnership(ctx context.Context, q *targetv1.TransferOwnershipRequest, o ...grpc.CallOption) (*targetv1.TransferOwnershipResponse, error) {
	x.d.mu.Lock()
	defer x.d.mu.Unlock()
	if x.d.stands.GetDrainedNode() == q.ToNode {
		return nil, status.Error(codes.FailedPrecondition, "the node is drained")
	}
	x.d.calls = append(x.d.calls, "transfer "+q.ToNode)
	return x.TargetServiceClient.TransferOwnership(ctx, q, o...)
}

func (x drainer) GetStatus(ctx context.Context, q *targetv1.GetStatusRequest, o ...grpc.CallOption) (*targetv1.Status, error) {
	s, err := x.TargetServiceClient.GetStatus(ctx, q, o...)
	x.d.mu.Lock()
	defer x.d.mu.Unlock()
	if err == nil {
		s.Ownership = x.d.stands
	}
	return s, err
}

// stand replaces the drain that stands. The messages that statuses have given out do not change.
func (d *drains) stand(node string, left time.Duration, reason string) {
	d.stands = &targetv1.Ownership{DrainedNode: node, DrainedUntil: timestamppb.New(time.Now().Add(left)), DrainReason: reason}
}

// expire leaves so much time until the drain that stands ends.
func (d *drains) expire(left time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stand(d.stands.DrainedNode, left, d.stands.DrainReason)
}

// node is the drained node, or empty.
func (d *drains) node() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stands.GetDrainedNode()
}

// take returns the calls since the last take.
func (d *drains) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := strings.Join(d.calls, ", ")
	d.calls = nil
	return out
}

// asked checks which calls the last steps have made.
func (s *stage) asked(when, want string) {
	s.t.Helper()
	if got := s.drains.take(); got != want {
		s.t.Errorf("%s: %q, not %q", when, got, want)
	}
}

// drainEvents are the events about drains since the last call.
func (s *stage) drainEvents() string {
	return strings.Join(slices.DeleteFunc(s.events(), func(e string) bool { return !strings.Contains(e, "Drain") }), "|")
}

// owner of the stage's LUN, according to the pair.
func (s *stage) owner() string {
	s.t.Helper()
	l, err := s.pair.Client(0).GetLUN(s.ctx, &targetv1.GetLUNRequest{Uuid: s.lun})
	s.ok(err)
	return l.Owner
}

// A roll drains each node before its restart, also one without LUNs. The drain is renewed while
// the roll waits, replaced by that of the next node, and ended when both nodes are in sync.
func TestRollDrainsEachNodeAndEndsTheDrain(t *testing.T) {
	w := newWorld(t, "drains")
	w.run()
	s := w.stage("drains-stage")
	s.calm()
	defer s.createLUN(&scene{lun: true})()
	s.events()
	s.image("gemel:2")
	s.step()
	s.asked("first", "drain b 300")
	if e := s.drainEvents(); s.get().Annotations[annotationRestarting] == "" || !strings.Contains(e, "Normal Drained node b is drained") {
		t.Fatalf("%q %+v", e, s.get().Annotations)
	}
	s.play() // the pod of b is gone
	s.step()
	s.asked("more than half of the drain is left", "")
	s.drains.expire(drainTime / 3)
	s.drains.fail = codes.Unavailable
	s.step()
	s.asked("the renewal fails", "")
	s.drains.fail = codes.OK
	s.step()
	s.asked("less than half of the drain is left", "drain b 300")
	if left := time.Until(s.drains.stands.DrainedUntil.AsTime()); left < drainTime-time.Minute || s.drains.node() != "b" {
		t.Fatalf("%v left, %q", left, s.drains.node())
	}
	if e := s.drainEvents(); e != "" {
		t.Errorf("a renewal caused events: %q", e)
	}
	if s.owner() != "a" {
		t.Fatal("the LUN moved between the steps")
	}
	s.play() // b is back
	s.step()
	s.asked("second", "drain a 300")
	if s.owner() != "b" {
		t.Fatal("the LUN was not moved")
	}
	s.play()
	s.play()
	s.drains.fail = codes.Unavailable
	s.step()
	s.asked("the end fails", "")
	if err := s.upToDate(); err == nil || s.condition(v1alpha1.ConditionUpToDate).Status != "True" {
		t.Fatalf("a drain that cannot be ended holds up the roll: %v, %+v", err, s.get().Status)
	}
	s.drains.fail = codes.OK
	s.events()
	s.step()
	s.asked("end", "drain a 0")
	if e := s.drainEvents(); !strings.Contains(e, "Normal DrainEnded node a is no longer drained") || s.drains.node() != "" {
		t.Fatalf("%q, %q", e, s.drains.node())
	}
	s.step()
	s.asked("after the end", "")
	s.ok(s.upToDate())
}

// A drain of an administrator is neither renewed nor ended.
func TestDrainOfAnAdministratorStays(t *testing.T) {
	w := newWorld(t, "by-hand")
	w.run()
	s := w.stage("by-hand-stage")
	s.calm()
	s.drains.stand("a", time.Second, "the worker of node a gets a new network card")
	s.step()
	s.down["b"] = true // not in sync
	s.step()
	s.asked("a drain by hand", "")
	if s.drains.node() != "a" {
		t.Error("it was ended")
	}
}

// A drain whose restart is no longer wanted is ended: an operator crashed after the drain, or the
// spec was reverted.
func TestDrainWithoutARollIsEnded(t *testing.T) {
	w := newWorld(t, "reverted")
	w.run()
	s := w.stage("reverted-stage")
	s.calm()
	s.drains.stand("b", drainTime, drainedBy+"node b is restarted")
	s.down["b"] = true // not in sync: the drain stands
	s.step()
	s.asked("while a node does not answer", "")
	s.drains.expire(time.Second)
	s.step()
	s.asked("while a node does not answer for long", "drain b 300")
	s.down["b"] = false
	s.step()
	s.asked("in sync", "drain b 0")
}

// Nodes of a release without Drain get their LUNs moved away, once and only if they own some.
func TestRollOfAReleaseWithoutDrainTransfersOwnership(t *testing.T) {
	w := newWorld(t, "earlier")
	w.run()
	s := w.stage("earlier-stage")
	s.drains.earlier = true
	s.calm()
	defer s.createLUN(&scene{lun: true})()
	s.events()
	s.image("gemel:2")
	s.step()
	s.play()
	s.play()
	s.asked("the node without LUNs", "")
	s.step()
	s.asked("the node with the LUN", "transfer b")
	if s.owner() != "b" {
		t.Error("the LUN was not moved")
	}
	s.play()
	s.play()
	s.step()
	s.asked("the end", "")
	s.ok(s.upToDate())
	if e := s.drainEvents(); e != "" {
		t.Errorf("%q", e)
	}
}
