package snapshot

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// stub is a pair whose calls can be made to fail; test/integration/objects tests with a real pair.
type stub struct {
	pairconn.Pair
	snap  *targetv1.Snapshot
	fail  codes.Code // of the next call that takes a snapshot
	takes int
}

func (s *stub) Client(context.Context, string) (pairconn.Pair, error) { return s, nil }

func (s *stub) ListSnapshots(context.Context, *targetv1.ListSnapshotsRequest, ...grpc.CallOption) (*targetv1.ListSnapshotsResponse, error) {
	r := &targetv1.ListSnapshotsResponse{}
	if s.snap != nil {
		r.Snapshots = append(r.Snapshots, s.snap)
	}
	return r, nil
}

func (s *stub) CreateSnapshot(_ context.Context, q *targetv1.CreateSnapshotRequest, _ ...grpc.CallOption) (*targetv1.Snapshot, error) {
	s.takes++
	if s.fail != codes.OK {
		return nil, status.Error(s.fail, "injected by the test")
	}
	s.snap = &targetv1.Snapshot{Uuid: q.Uuid, Name: q.Name, SourceLunUuid: q.SourceLunUuid, SizeBytes: 8 << 20, Created: timestamppb.New(time.Unix(1e9, 5e8)), Labels: q.Labels}
	return s.snap, nil
}

func (s *stub) DeleteSnapshot(context.Context, *targetv1.DeleteSnapshotRequest, ...grpc.CallOption) (*targetv1.DeleteSnapshotResponse, error) {
	s.snap = nil
	return &targetv1.DeleteSnapshotResponse{}, nil
}

const (
	uid    = "01234567-89ab-cdef-0123-456789abcdef"
	source = "11111111-89ab-cdef-0123-456789abcdef"
)

func TestSnapshotIsTakenOnceAndKeptUntilDestroyed(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1", UID: uid, Generation: 1},
		Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: "lun-1", Name: "mine"}}
	c := fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(o).WithObjects(o).Build()
	pair := &stub{}
	r := &Reconciler{Client: c, Live: c, Pairs: pair, Recorder: events.NewFakeRecorder(100)}
	look := func(want string, again bool) *v1alpha1.LogicalUnitSnapshot {
		t.Helper()
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "snap-1"}})
		var now v1alpha1.LogicalUnitSnapshot
		if err := c.Get(t.Context(), client.ObjectKey{Name: "snap-1"}, &now); err != nil {
			if apierrors.IsNotFound(err) && want == "" {
				return nil
			}
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(now.Status.Conditions, "Ready")
		if got := string(ready.Status) + " " + ready.Reason; got != want || (err != nil) != again {
			t.Fatalf("%s, %v, want %s", got, err, want)
		}
		return &now
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	look("False NoSource", false)
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-1"}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c"}}
	ok(c.Create(t.Context(), lu))
	look("False Progressing", true)
	lu.Annotations, lu.Spec.Placement = map[string]string{v1alpha1.AnnotationMade: "true"}, &v1alpha1.Placement{Pair: "p", UUID: source}
	ok(c.Update(t.Context(), lu))
	for code, want := range map[codes.Code]string{codes.NotFound: "False NoSource", codes.Unavailable: "False PairDown", codes.ResourceExhausted: "False NoRoom"} {
		pair.fail = code
		look(want, code == codes.Unavailable)
	}
	pair.fail = codes.OK
	// From now on the source is not needed.
	ok(c.Delete(t.Context(), lu))
	now := look("True Ready", false)
	if p := now.Spec.Placement; p.Pair != "p" || p.UUID != uid || p.SourceUUID != source || now.Status.Size.Value() != 8<<20 || now.Status.TakenAt.Unix() != 1e9 {
		t.Fatalf("%+v", now)
	}
	if l := pair.snap.Labels; l[LabelObject] != "snap-1" || l[LabelSource] != "lun-1" || l["csi.gemel.storage/name"] != "mine" || l["gemel.storage/cluster"] != "c" {
		t.Error(l)
	}
	version := now.ResourceVersion
	if again := look("True Ready", false); again.ResourceVersion != version {
		t.Error("written although nothing has changed")
	}
	// A snapshot is taken once only.
	kept, takes := pair.snap, pair.takes
	pair.snap = nil
	look("False Missing", false)
	if pair.takes != takes {
		t.Fatal("taken again")
	}
	pair.snap = kept
	look("True Ready", false)
	// A deletion keeps the data, unless spec.destroy is set.
	ok(c.Delete(t.Context(), now))
	now = look("True DataKept", false)
	if pair.snap == nil || !slices.Contains(now.Finalizers, v1alpha1.Finalizer) {
		t.Fatal("the data is gone")
	}
	now.Spec.Destroy = true
	ok(c.Update(t.Context(), now))
	look("", false)
	if pair.snap != nil {
		t.Error("the data is still there")
	}
}
