package pair

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/scrubs"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// change modifies spec.scrub of the cluster.
func (w *world) change(f func(*v1alpha1.Scrub)) {
	w.t.Helper()
	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	f(&c.Spec.Scrub)
	w.ok(w.c.Update(w.ctx, c))
}

// scrubbed reconciles until the pair has a new result.
func (w *world) scrubbed(after string) *v1alpha1.ScrubStatus {
	w.t.Helper()
	var s *v1alpha1.ScrubStatus
	w.ok(harness.Wait(w.ctx, "a scrub has ended", func() (bool, string) {
		w.step()
		s = w.get().Status.Scrub
		return s != nil && !s.Active && s.LastResult != nil && s.LastResult.ID != after, ""
	}))
	return s
}

// A scheduled scrub compares the pair, records events for its findings, and plans the next scrub.
func TestScheduledScrubRecordsFindingsAndPlansTheNext(t *testing.T) {
	w := newWorld(t, "scrubs")
	w.run()
	id := uuid.NewString()
	_, err := w.pair.Client(0).CreateLUN(w.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 4 << 20, PreferredNode: "a"})
	w.ok(err)
	w.ok(w.c.Create(w.ctx, &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "scrubs-lun"}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "scrubs",
		Size: resource.MustParse("4Mi"), Placement: &v1alpha1.Placement{Pair: w.name, UUID: id}}}))
	w.step()
	if args := strings.Join(w.set("a").Spec.Template.Spec.Containers[0].Args, " "); !strings.Contains(args, "--scrub-interval=0s") {
		t.Error("the nodes have a schedule of their own: ", args)
	}
	w.pod("a", "worker-1")
	w.pod("b", "worker-2")
	w.step()
	w.step()
	s := w.get().Status.Scrub
	if s == nil || s.NextAt == nil || s.Schedule != "0 2 * * 6" || s.NextAt.UTC().Weekday() != time.Saturday || s.NextAt.UTC().Hour() != 2 || s.Active || s.LastResult != nil {
		t.Fatalf("%+v", s)
	}
	// It is due: nothing differs.
	w.change(func(x *v1alpha1.Scrub) { x.Schedule = "* * * * *" })
	w.step()
	soon := w.get().Status.Scrub.NextAt.Time
	if left := time.Until(soon); left > time.Minute || left < -10*time.Second {
		t.Fatalf("planned for %v", soon)
	}
	w.r.Now = func() time.Time { return soon.Add(90 * time.Minute) }
	s = w.scrubbed("")
	first := s.LastResult
	if first.Result != string(scrubs.Clean) || first.DoneBytes != 4<<20 || s.TotalBytes != 4<<20 || s.Origin != v1alpha1.ScrubBySchedule || s.StartedAt == nil || s.FinishedAt == nil ||
		len(s.Shares) != 2 || s.Shares[0].TotalBytes+s.Shares[1].TotalBytes != s.TotalBytes || !s.NextAt.After(soon.Add(90*time.Minute)) {
		t.Fatalf("%+v", s)
	}
	for range 3 {
		w.step() // it had been missed ninety times
	}
	if s := w.get().Status.Scrub; s.Active || s.LastResult.ID != first.ID {
		t.Fatalf("%+v", s)
	}
	w.events()

	// A scrub that finds a difference, with repair by default.
	w.change(func(x *v1alpha1.Scrub) { x.BytesPerSecond = new(resource.MustParse("1Gi")) })
	f, err := os.OpenFile(filepath.Join(w.pair.State[1], "volumes", "default", "luns", id+".img"), os.O_RDWR, 0)
	w.ok(err)
	_, err = f.WriteAt([]byte("rot"), 2<<20+7)
	w.ok(err)
	w.ok(f.Close())
	next := w.get().Status.Scrub.NextAt.Time
	w.r.Now = func() time.Time { return next.Add(time.Second) }
	s = w.scrubbed(first.ID)
	if l := s.LastResult; l.Result != string(scrubs.Repaired) || l.MismatchedRanges != 1 || l.RepairedRanges != 1 || !s.Repair {
		t.Fatalf("%+v %+v", s, s.LastResult)
	}
	w.step()
	text := strings.Join(w.events(), "\n")
	for _, want := range []string{"Warning ScrubMismatched LUN or snapshot " + id + " (scrubs-lun) at 2097152+1048576: the two copies differ",
		"Normal ScrubRepaired LUN or snapshot " + id + " (scrubs-lun) at 2097152+1048576 was repaired", "Normal ScrubFinished Repaired: 4194304 of 4194304 bytes compared"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is there %d times:\n%s", want, strings.Count(text, want), text)
		}
	}

	// A suspended and an invalid schedule.
	w.change(func(x *v1alpha1.Scrub) { x.Suspend = true })
	w.step()
	if s := w.get().Status.Scrub; s.NextAt != nil || s.LastResult.Result != string(scrubs.Repaired) {
		t.Fatalf("%+v", s)
	}
	w.change(func(x *v1alpha1.Scrub) { x.Suspend, x.Schedule = false, "0 25 * * *" })
	w.step()
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Reason != v1alpha1.ReasonInvalid || !strings.Contains(c.Message, "spec.scrub.schedule") {
		t.Fatalf("%+v", c)
	}
}

// By default a scrub repairs if checksums show which copy is damaged, and only then.
func TestScrubRepairsWhereThereAreChecksums(t *testing.T) {
	all, some, none := &targetv1.Checksums{TotalBytes: 8, CoveredBytes: 8}, &targetv1.Checksums{TotalBytes: 8, CoveredBytes: 7}, (*targetv1.Checksums)(nil)
	for _, x := range []struct {
		a, b *targetv1.Checksums
		said *bool
		want bool
	}{
		{all, all, nil, true},
		{&targetv1.Checksums{}, &targetv1.Checksums{}, nil, true}, // nothing there
		{all, some, nil, false},
		{all, none, nil, false},
		{none, all, nil, false},
		{none, none, nil, false},
		{all, all, new(false), false},
		{none, none, new(true), true},
	} {
		v := &view{nodes: [2]nodeView{{status: &targetv1.Status{Checksums: x.a}}, {status: &targetv1.Status{Checksums: x.b}}}}
		if got := v.repair(&v1alpha1.Scrub{Repair: x.said}); got != x.want {
			t.Errorf("%v, %v, spec %v: %v", x.a, x.b, x.said, got)
		}
	}
	if v := (&view{}); v.repair(&v1alpha1.Scrub{}) {
		t.Error("nodes that do not answer")
	}
}

// At most spec.scrub.parallel pairs of a cluster are scrubbed at a time.
func TestScrubsWaitForTheirTurn(t *testing.T) {
	w := newWorld(t, "turns")
	now := time.Now()
	other := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "turns-2"}, Spec: v1alpha1.TargetPairSpec{Cluster: w.name, Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
	w.ok(w.c.Create(w.ctx, other))
	c := &v1alpha1.StorageCluster{Spec: v1alpha1.StorageClusterSpec{Scrub: v1alpha1.Scrub{Parallel: 1}}}
	setScrub := func(s *v1alpha1.ScrubStatus) {
		t.Helper()
		other.Status.Scrub = s
		w.ok(w.c.Status().Update(w.ctx, other))
	}
	at := func(ago time.Duration) *metav1.Time { x := metav1.NewTime(now.Add(-ago)); return &x }
	turn := func(want bool, why string) {
		t.Helper()
		if got := w.r.acquireTurn(w.ctx, c, w.get(), now); got != want {
			t.Errorf("%s: %v", why, got)
		}
		w.r.turns.remove(w.name)
	}
	turn(true, "no pair is being scrubbed")
	setScrub(&v1alpha1.ScrubStatus{Active: true, ObservedAt: at(time.Second)})
	turn(false, "the other pair is being scrubbed")
	c.Spec.Scrub.Parallel = 2
	turn(true, "two may be")
	c.Spec.Scrub.Parallel = 1
	setScrub(&v1alpha1.ScrubStatus{Active: true, ObservedAt: at(time.Hour)})
	turn(true, "a pair that does not answer does not block others")
	setScrub(&v1alpha1.ScrubStatus{ObservedAt: at(time.Hour)})
	if !w.r.acquireTurn(w.ctx, c, other, now) {
		t.Fatal("refused")
	}
	turn(false, "the scrub of the other pair was started, and its status does not show it yet")
	setScrub(&v1alpha1.ScrubStatus{ObservedAt: at(-time.Second)})
	turn(true, "it has ended")
}

// Progress is written from time to time, a finding at once; the share of a node that does not
// answer stays.
func TestScrubStatusWritesFindingsAtOnce(t *testing.T) {
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	r := &scrubs.Report{ID: "x", Active: true, Started: now, TotalBytes: 100, DoneBytes: 1, Shares: []*targetv1.Scrub{{Id: "x", Node: "b", TotalBytes: 60}, {Id: "x", Node: "a", TotalBytes: 40, DoneBytes: 1}}}
	first := scrubStatus(&v1alpha1.ScrubStatus{Schedule: "s"}, r, now)
	if !first.Active || first.DoneBytes != 1 || first.Schedule != "s" || len(first.Shares) != 2 || first.Shares[0].Node != "a" || first.LastResult != nil {
		t.Fatalf("%+v", first)
	}
	r.DoneBytes = 50
	if s := scrubStatus(first, r, now.Add(scrubInterval-1)); s.DoneBytes != 1 {
		t.Errorf("%+v", s)
	}
	if s := scrubStatus(first, r, now.Add(scrubInterval)); s.DoneBytes != 50 {
		t.Errorf("%+v", s)
	}
	r.Mismatched = 1
	if s := scrubStatus(first, r, now.Add(1)); s.DoneBytes != 50 || s.MismatchedRanges != 1 {
		t.Errorf("%+v", s)
	}
	v := &view{nodes: [2]nodeView{{name: "a", status: &targetv1.Status{LastScrub: &targetv1.Scrub{Id: "x", Node: "a", TotalBytes: 40, DoneBytes: 40, Reason: "the peer is not a member any more"}}}, {name: "b"}}}
	got := v.scrub(first)
	if got == nil || got.Active || got.TotalBytes != 100 || got.Result() != scrubs.Stopped || !strings.Contains(got.Reason, "node b does not answer") {
		t.Fatalf("%+v", got)
	}
	if s := scrubStatus(first, got, now.Add(1)); s.Active || s.LastResult == nil || s.LastResult.Result != string(scrubs.Stopped) {
		t.Fatalf("%+v", s)
	}
}
