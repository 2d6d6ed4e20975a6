package logicalunit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func named(uuid, from, to, reason string, at time.Time) v1alpha1.OwnershipMove {
	return v1alpha1.OwnershipMove{UUID: uuid, From: from, To: to, Reason: reason, Message: "because", Time: metav1.NewTime(at)}
}

func text(list []v1alpha1.LogicalUnitMove) string {
	var out []string
	for _, m := range list {
		s := fmt.Sprintf("%s-%s %s %s", m.From, m.To, m.Reason, m.Time.UTC().Format("04:05"))
		if m.Derived {
			s += " derived"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestMovesAreThoseOfThePairOrDerived(t *testing.T) {
	both := []string{"a", "b"}
	for _, c := range []struct {
		name   string
		before string // owner in the status
		stored []v1alpha1.LogicalUnitMove
		pair   v1alpha1.TargetPairStatus
		lun    *targetv1.LUN
		want   string
	}{
		{"the first look", "", nil, v1alpha1.TargetPairStatus{}, &targetv1.LUN{Uuid: "u", Owner: "a"}, ""},
		{"nothing moved", "a", nil, v1alpha1.TargetPairStatus{Members: both}, &targetv1.LUN{Uuid: "u", Owner: "a"}, ""},
		{"named", "a", nil, v1alpha1.TargetPairStatus{Members: both, Ownership: &v1alpha1.OwnershipStatus{Moves: []v1alpha1.OwnershipMove{named("other", "a", "b", "Drain", noon), named("u", "a", "b", "Balance", noon)}}},
			&targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b Balance 00:00"},
		{"only observed", "a", nil, v1alpha1.TargetPairStatus{Ownership: &v1alpha1.OwnershipStatus{Moves: []v1alpha1.OwnershipMove{{UUID: "u", From: "a", To: "b", Observed: true, Time: metav1.NewTime(noon)}}}},
			&targetv1.LUN{Uuid: "u", Owner: "a"}, ""},
		{"a failover", "a", nil, v1alpha1.TargetPairStatus{Members: []string{"b"}}, &targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b OwnerGone 00:00 derived"},
		{"a drain of many LUNs", "a", nil, v1alpha1.TargetPairStatus{Members: both, Ownership: &v1alpha1.OwnershipStatus{DrainedNode: "a", Moves: []v1alpha1.OwnershipMove{named("other", "a", "b", "Drain", noon)}}},
			&targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b Drain 00:00 derived"},
		{"a pin", "a", nil, v1alpha1.TargetPairStatus{Members: both}, &targetv1.LUN{Uuid: "u", Owner: "b", PinnedNode: "b"}, "a-b Pin 00:00 derived"},
		{"a person", "a", nil, v1alpha1.TargetPairStatus{Members: both}, &targetv1.LUN{Uuid: "u", Owner: "b", PinnedNode: "none", HeldUntil: timestamppb.New(noon.Add(time.Hour))}, "a-b Transfer 00:00 derived"},
		{"nobody says", "a", nil, v1alpha1.TargetPairStatus{Members: both}, &targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b Unknown 00:00 derived"},
		{"said later", "b", []v1alpha1.LogicalUnitMove{{From: "a", To: "b", Reason: "Unknown", Derived: true, Time: metav1.NewTime(noon.Add(-time.Minute))}},
			v1alpha1.TargetPairStatus{Members: []string{"b"}}, &targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b OwnerGone 59:00 derived"},
		{"named later", "b", []v1alpha1.LogicalUnitMove{{From: "a", To: "b", Reason: "Drain", Derived: true, Time: metav1.NewTime(noon.Add(-time.Minute))}},
			v1alpha1.TargetPairStatus{Members: both, Ownership: &v1alpha1.OwnershipStatus{Moves: []v1alpha1.OwnershipMove{named("u", "a", "b", "Connectivity", noon.Add(-90*time.Second))}}},
			&targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b Connectivity 58:30"},
		{"named already", "b", []v1alpha1.LogicalUnitMove{{From: "a", To: "b", Reason: "Balance", Message: "because", Time: metav1.NewTime(noon)}},
			v1alpha1.TargetPairStatus{Members: both, Ownership: &v1alpha1.OwnershipStatus{Moves: []v1alpha1.OwnershipMove{named("u", "a", "b", "Balance", noon)}}},
			&targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b Balance 00:00"},
		{"the status of the pair was faster than the owner of the status", "a", []v1alpha1.LogicalUnitMove{{From: "a", To: "b", Reason: "Balance", Message: "because", Time: metav1.NewTime(noon)}},
			v1alpha1.TargetPairStatus{Members: both}, &targetv1.LUN{Uuid: "u", Owner: "b"}, "a-b Balance 00:00"},
		{"the last four", "b", []v1alpha1.LogicalUnitMove{{From: "a", To: "b", Reason: "Drain", Time: metav1.NewTime(noon.Add(-9 * time.Minute))}, {From: "b", To: "a", Reason: "FailBack", Time: metav1.NewTime(noon.Add(-8 * time.Minute))}},
			v1alpha1.TargetPairStatus{Members: both, Ownership: &v1alpha1.OwnershipStatus{Moves: []v1alpha1.OwnershipMove{named("u", "a", "b", "Drain", noon.Add(-7*time.Minute)), named("u", "b", "a", "FailBack", noon.Add(-6*time.Minute)), named("u", "a", "b", "Drain", noon.Add(-5*time.Minute))}}},
			&targetv1.LUN{Uuid: "u", Owner: "b"}, "b-a FailBack 52:00, a-b Drain 53:00, b-a FailBack 54:00, a-b Drain 55:00"},
	} {
		s := &v1alpha1.LogicalUnitStatus{Owner: c.before, Moves: c.stored}
		if got := text(moves(s, &c.pair, c.lun, noon)); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// A move is written with the owner: once for each LUN, and later when it is the only news.
func TestMoveIsWrittenOnceWithTheOwner(t *testing.T) {
	f := setup(t, nil)
	f.r.Lazy = time.Hour
	if _, _, err := f.look(); err != nil {
		t.Fatal(err)
	}
	var p v1alpha1.TargetPair
	if err := f.c.Get(t.Context(), client.ObjectKey{Name: "p"}, &p); err != nil {
		t.Fatal(err)
	}
	p.Status.Members = []string{"b"}
	if err := f.c.Update(t.Context(), &p); err != nil {
		t.Fatal(err)
	}
	f.lun.Owner = "b"
	writes := f.writes
	if lu, _, err := f.look(); err != nil || f.writes != writes || lu.Status.Owner != "a" {
		t.Fatalf("written within the pause: %+v, %v", lu.Status, err)
	}
	f.r.Lazy = time.Nanosecond
	lu, _, err := f.look()
	if err != nil || f.writes != writes+1 || lu.Status.Owner != "b" || len(lu.Status.Moves) != 1 || lu.Status.Moves[0].Reason != "OwnerGone" || lu.Status.Moves[0].From != "a" {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
	if _, _, err := f.look(); err != nil || f.writes != writes+1 {
		t.Errorf("written %d times for one move", f.writes-writes)
	}
}

// Only a change of its moves makes a pair enqueue LUNs: those that it names.
func TestMovedLUNsAreEnqueuedOnce(t *testing.T) {
	old, now := &v1alpha1.TargetPair{}, &v1alpha1.TargetPair{}
	now.Status.LogicalUnits = 7
	if movesChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: now}) {
		t.Error("no move is new")
	}
	now.Status.Ownership = &v1alpha1.OwnershipStatus{Moves: []v1alpha1.OwnershipMove{{LogicalUnit: "one"}, {UUID: "orphan"}, {LogicalUnit: "two", Observed: true}}}
	if !movesChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: now}) || movesChanged(event.UpdateEvent{ObjectOld: now, ObjectNew: now.DeepCopy()}) {
		t.Error("a move is new, once")
	}
	if got := movedLUNs(t.Context(), now); len(got) != 1 || got[0].Name != "one" {
		t.Error(got)
	}
}
