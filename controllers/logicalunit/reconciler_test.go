package logicalunit

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// stub is a pair whose calls can be made to fail, to test how the reconciler reports it;
// test/integration/objects tests with a real pair.
type stub struct {
	pairconn.Pair
	lun   *targetv1.LUN
	fail  map[string]codes.Code // by call, or call and host
	mu    sync.Mutex            // of calls: pairs are asked for their room at the same time
	calls []string
	chap  *targetv1.CHAP // of the last MapHost
	near  *targetv1.Near // of the last MapHost
	// reported volumes; none: a release with one volume only
	volumes []*targetv1.BackingVolume
	asked   *targetv1.CreateLUNRequest // last
	next    uint64                     // generation
	// exclusive of the last MapHost
	exclusive  bool
	unpinnable bool // of a release that passes over the field
	profile    string
}

func (s *stub) Client(context.Context, string) (pairconn.Pair, error) { return s, nil }

func (s *stub) did(call string) error {
	s.mu.Lock()
	s.calls = append(s.calls, call)
	s.mu.Unlock()
	if c, ok := s.fail[call]; ok {
		return status.Error(c, "injected by the test")
	}
	return nil
}

func (s *stub) Serving(context.Context) (*targetv1.Status, error) {
	return &targetv1.Status{Phase: targetv1.Phase_PHASE_IN_SYNC, FreeBytes: 1 << 30, Volumes: s.volumes}, s.did("status")
}

func (s *stub) GetLUN(context.Context, *targetv1.GetLUNRequest, ...grpc.CallOption) (*targetv1.LUN, error) {
	if s.lun == nil {
		return nil, status.Error(codes.NotFound, "none")
	}
	return s.lun, s.did("get")
}

func (s *stub) CreateLUN(_ context.Context, q *targetv1.CreateLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	if err := s.did("create"); err != nil {
		return nil, err
	}
	s.asked = q
	s.lun = &targetv1.LUN{Uuid: q.Uuid, Name: q.Name, SizeBytes: q.SizeBytes, Owner: "a", Wwid: "6", Labels: q.Labels,
		PreferredNode: cmp.Or(q.PreferredNode, "a"), WriteCache: cmp.Or(q.WriteCache, targetv1.WriteCache_WRITE_CACHE_WRITE_BACK)}
	return s.lun, nil
}

func (s *stub) ExpandLUN(_ context.Context, q *targetv1.ExpandLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	if err := s.did("expand"); err != nil {
		return nil, err
	}
	s.lun.SizeBytes = q.SizeBytes
	return s.lun, nil
}

func (s *stub) ModifyLUN(_ context.Context, q *targetv1.ModifyLUNRequest, _ ...grpc.CallOption) (*targetv1.LUN, error) {
	what := strings.TrimSpace("modify " + q.PreferredNode + " " + q.WriteCache.Word())
	if q.PinnedNode != "" {
		what += "pin " + q.PinnedNode
	}
	if q.PinnedTier != "" {
		what += "tier " + q.PinnedTier
	}
	if q.SpreadGroup != "" {
		what += "group " + q.SpreadGroup
	}
	if err := s.did(what); err != nil {
		return nil, err
	}
	if q.PinnedNode != "" && !s.unpinnable {
		if s.lun.PinnedNode = q.PinnedNode; s.lun.Owner == q.PinnedNode {
			s.lun.PreferredNode = q.PinnedNode
		}
	}
	if !s.unpinnable {
		s.lun.PinnedTier = cmp.Or(q.PinnedTier, s.lun.PinnedTier)
	}
	s.lun.SpreadGroup = cmp.Or(q.SpreadGroup, s.lun.SpreadGroup)
	s.lun.PreferredNode, s.lun.WriteCache = cmp.Or(q.PreferredNode, s.lun.PreferredNode), cmp.Or(q.WriteCache, s.lun.WriteCache)
	return s.lun, nil
}

func (s *stub) TransferOwnership(_ context.Context, q *targetv1.TransferOwnershipRequest, _ ...grpc.CallOption) (*targetv1.TransferOwnershipResponse, error) {
	if err := s.did("move " + q.ToNode); err != nil {
		return nil, err
	}
	s.lun.Owner = q.ToNode
	return &targetv1.TransferOwnershipResponse{Moved: 1}, nil
}

func (s *stub) MapHost(_ context.Context, q *targetv1.MapHostRequest, _ ...grpc.CallOption) (*targetv1.Mapping, error) {
	if err := s.did("map " + q.HostIqn); err != nil {
		return nil, err
	}
	s.chap, s.exclusive, s.near, s.profile = q.Chap, q.Exclusive, q.Near, q.Profile
	for _, m := range s.lun.Mappings {
		if m.HostIqn == q.HostIqn {
			return m, nil
		}
	}
	s.next++
	m := &targetv1.Mapping{HostIqn: q.HostIqn, Lun: 1, Generation: s.next}
	s.lun.Mappings = append(s.lun.Mappings, m)
	return m, nil
}

func (s *stub) UnmapHost(_ context.Context, q *targetv1.UnmapHostRequest, _ ...grpc.CallOption) (*targetv1.UnmapHostResponse, error) {
	if err := s.did("unmap " + q.HostIqn); err != nil {
		return nil, err
	}
	var left []*targetv1.Mapping
	for _, m := range s.lun.Mappings {
		if m.HostIqn != q.HostIqn {
			left = append(left, m)
		}
	}
	s.lun.Mappings = left
	return &targetv1.UnmapHostResponse{}, nil
}

type fixture struct {
	*testing.T
	*stub
	c      client.Client
	r      *Reconciler
	writes int // of the status
}

func setup(t *testing.T, change func(*v1alpha1.LogicalUnit)) *fixture {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, stub: &stub{fail: map[string]codes.Code{}}}
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-1", UID: "01234567-89ab-cdef-0123-456789abcdef", Generation: 1},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Size: resource.MustParse("8Mi")}}
	if change != nil {
		change(lu)
	}
	b := fake.NewClientBuilder().WithScheme(s)
	index.Each(func(o client.Object, name string, keys client.IndexerFunc) { b = b.WithIndex(o, name, keys) })
	f.c = b.WithIndex(&corev1.PersistentVolume{}, groups.VolumeIndex, groups.VolumeKeys).WithIndex(lu, groups.UnitIndex, groups.UnitKeys).WithStatusSubresource(lu).WithObjects(lu,
		&v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.TargetPairSpec{Cluster: "c"}}).
		WithInterceptorFuncs(interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			f.writes++
			return c.SubResource(sub).Update(ctx, o, opts...)
		}}).Build()
	f.r = &Reconciler{Client: f.c, Live: f.c, Pairs: f, Recorder: events.NewFakeRecorder(100)}
	return f
}

// look reconciles once and reads the object.
func (f *fixture) look() (*v1alpha1.LogicalUnit, ctrl.Result, error) {
	f.Helper()
	key := client.ObjectKey{Name: "lun-1"}
	f.calls = nil
	res, err := f.r.Reconcile(f.Context(), ctrl.Request{NamespacedName: key})
	var lu v1alpha1.LogicalUnit
	if err := f.c.Get(f.Context(), key, &lu); err != nil {
		f.Fatal(err)
	}
	return &lu, res, err
}

func (f *fixture) spec(change func(*v1alpha1.LogicalUnit)) {
	f.Helper()
	var lu v1alpha1.LogicalUnit
	if err := f.c.Get(f.Context(), client.ObjectKey{Name: "lun-1"}, &lu); err != nil {
		f.Fatal(err)
	}
	change(&lu)
	lu.Generation++ // as the API server does
	if err := f.c.Update(f.Context(), &lu); err != nil {
		f.Fatal(err)
	}
}

func condition(lu *v1alpha1.LogicalUnit, kind string) string {
	c := meta.FindStatusCondition(lu.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func hosts(names ...string) func(*v1alpha1.LogicalUnit) {
	return func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Hosts = nil
		for _, n := range names {
			lu.Spec.Hosts = append(lu.Spec.Hosts, v1alpha1.HostAccess{IQN: n})
		}
	}
}

func TestLUNIsCreatedOnce(t *testing.T) {
	f := setup(t, nil)
	lu, res, err := f.look()
	if err != nil || condition(lu, "Ready") != "True Ready" || condition(lu, "Published") != "True Ready" || lu.Spec.Placement.Pair != "p" ||
		lu.Spec.Placement.UUID != string(lu.UID) || lu.Annotations[v1alpha1.AnnotationMade] != "true" || res.RequeueAfter == 0 {
		t.Fatalf("%+v, %v, %v", lu, res, err)
	}
	f.lun = nil
	if lu, _, err := f.look(); err != nil || condition(lu, "Ready") != "False Missing" || len(f.calls) != 0 {
		t.Fatalf("%+v, %v, %v", lu.Status, f.calls, err)
	}
}

func TestFailuresAreConditionsAndRecover(t *testing.T) {
	for name, c := range map[string]struct {
		call  string
		code  codes.Code
		ready string
		again bool
	}{
		"pair says nothing": {"status", codes.Unavailable, "False PairDown", true},
		"no room":           {"create", codes.ResourceExhausted, "False NoRoom", false},
		"name is taken":     {"create", codes.AlreadyExists, "False Invalid", false},
		"not confirmed":     {"create", codes.DeadlineExceeded, "False NotConfirmed", true},
		"pair is down":      {"create", codes.Unavailable, "False PairDown", true},
		"source is gone":    {"create", codes.NotFound, "False NoSource", false},
	} {
		f := setup(t, nil)
		f.fail[c.call] = c.code
		lu, _, err := f.look()
		if condition(lu, "Ready") != c.ready || (err != nil) != c.again || lu.Annotations[v1alpha1.AnnotationMade] != "" {
			t.Errorf("%s: %+v, %v", name, lu.Status, err)
		}
		delete(f.fail, c.call)
		if lu, _, err := f.look(); err != nil || condition(lu, "Ready") != "True Ready" {
			t.Errorf("%s, recovered: %+v, %v", name, lu.Status, err)
		}
	}
}

// A LUN that cannot grow is still published; a host that cannot be fenced stays in the status and
// no other host is mapped.
func TestFailedExpansionStillPublishesAndFailedFenceBlocksHosts(t *testing.T) {
	f := setup(t, hosts("iqn.2026-11.x:a"))
	f.look()
	f.fail["expand"] = codes.ResourceExhausted
	f.spec(func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Size, lu.Spec.Shared = resource.MustParse("16Mi"), true
		hosts("iqn.2026-11.x:a", "iqn.2026-11.x:b")(lu)
	})
	lu, _, _ := f.look()
	if condition(lu, "Ready") != "False NoRoom" || condition(lu, "Published") != "True Ready" || len(lu.Status.Hosts) != 2 || lu.Status.ObservedGeneration != lu.Generation {
		t.Fatalf("%+v", lu.Status)
	}
	f.fail["unmap iqn.2026-11.x:a"] = codes.DeadlineExceeded
	f.spec(hosts("iqn.2026-11.x:c"))
	lu, _, err := f.look()
	if err == nil || condition(lu, "Published") != "False NotConfirmed" || len(lu.Status.Hosts) != 1 || lu.Status.Hosts[0].IQN != "iqn.2026-11.x:a" {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
	if s := strings.Join(f.calls, ","); strings.Contains(s, "map iqn.2026-11.x:c") {
		t.Error("mapped before the others were fenced: ", s)
	}
	delete(f.fail, "unmap iqn.2026-11.x:a")
	if lu, _, _ := f.look(); len(lu.Status.Hosts) != 1 || lu.Status.Hosts[0].IQN != "iqn.2026-11.x:c" {
		t.Fatalf("%+v", lu.Status)
	}
}

// A changed readOnly is a new mapping; with a lost status the mapping is requested again, not
// removed.
func TestChangedReadOnlyIsANewMapping(t *testing.T) {
	f := setup(t, hosts("iqn.2026-11.x:a"))
	before, _, _ := f.look()
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Hosts[0].ReadOnly = true })
	after, _, _ := f.look()
	if !after.Status.Hosts[0].ReadOnly || after.Status.Hosts[0].Generation == before.Status.Hosts[0].Generation {
		t.Fatalf("%+v", after.Status)
	}
	if lu, _, _ := f.look(); !lu.Status.Hosts[0].ReadOnly || strings.Contains(strings.Join(f.calls, ","), "map") {
		t.Errorf("%+v, %v", lu.Status, f.calls)
	}
	after.Status.Hosts = nil
	if err := f.c.Status().Update(f.Context(), after); err != nil {
		t.Fatal(err)
	}
	if lu, _, _ := f.look(); len(lu.Status.Hosts) != 1 || strings.Contains(strings.Join(f.calls, ","), "unmap") {
		t.Errorf("%+v, %v", lu.Status, f.calls)
	}
}

// Informative fields are written from time to time, all others at once.
func TestInformativeFieldsAreWrittenLazily(t *testing.T) {
	f := setup(t, nil)
	f.look()
	if f.writes != 1 {
		t.Fatalf("%d writes", f.writes)
	}
	f.lun.Owner, f.lun.AllocatedBytes = "b", 4096
	lu, res, _ := f.look()
	if f.writes != 1 || lu.Status.Owner != "a" || res.RequeueAfter > 30*time.Second {
		t.Fatalf("%d writes, %+v, %v", f.writes, lu.Status, res)
	}
	f.spec(hosts("iqn.2026-11.x:a"))
	if lu, _, _ := f.look(); f.writes != 2 || lu.Status.Owner != "b" || lu.Status.Allocated.Value() != 4096 {
		t.Fatalf("%d writes, %+v", f.writes, lu.Status)
	}
	f.r.Lazy = time.Nanosecond
	f.lun.Owner = "a"
	if lu, _, _ := f.look(); f.writes != 3 || lu.Status.Owner != "a" {
		t.Fatalf("%d writes, %+v", f.writes, lu.Status)
	}
	f.look()
	if f.writes != 3 {
		t.Error("written although nothing has changed")
	}
	// The space of a LUN of 8 MiB that grows: a hundredth of the size is worth a write, and what
	// was empty or becomes so.
	for _, x := range []struct {
		allocated uint64
		writes    int
	}{{8192, 3}, {4096 + 80<<10, 3}, {4096 + 84<<10, 4}, {84 << 10, 4}, {0, 5}, {4096, 6}} {
		f.lun.AllocatedBytes = x.allocated
		if lu, _, _ := f.look(); f.writes != x.writes || f.writes > 4 && lu.Status.Allocated.Value() != int64(x.allocated) {
			t.Errorf("%d bytes: %d writes, want %d; %v", x.allocated, f.writes, x.writes, lu.Status.Allocated)
		}
	}
}

// What hosts write to many LUNs is a bounded load of the API server, and changes that matter are
// not: here each look is another LUN that has grown.
func TestAllocatedIsWrittenSeldomByManyLUNs(t *testing.T) {
	f := setup(t, nil)
	f.look()
	f.lun.AllocatedBytes = 1 << 20
	f.r.Lazy = time.Nanosecond
	f.look()
	before := f.writes
	for i := range uint64(20 * allocatedPerSecond) {
		f.lun.AllocatedBytes = (2 + i) << 20
		f.look()
	}
	if n := f.writes - before; n < 10*allocatedPerSecond || n > 15*allocatedPerSecond {
		t.Errorf("%d writes", n)
	}
	before = f.writes
	f.spec(hosts("iqn.2026-11.x:a"))
	if lu, _, _ := f.look(); f.writes != before+1 || lu.Status.Allocated.Value() != int64(f.lun.AllocatedBytes) {
		t.Errorf("a change of hosts: %d writes", f.writes-before)
	}
}

// The LUN of another object is neither mapped nor destroyed.
func TestLUNOfAnotherObjectIsLeftAlone(t *testing.T) {
	f := setup(t, func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Placement = &v1alpha1.Placement{Pair: "p", UUID: "fedcba98-89ab-cdef-0123-456789abcdef"}
		lu.Finalizers = []string{v1alpha1.Finalizer}
		hosts("iqn.2026-11.x:a")(lu)
	})
	f.lun = &targetv1.LUN{Uuid: "fedcba98-89ab-cdef-0123-456789abcdef", SizeBytes: 8 << 20, Labels: map[string]string{LabelObject: "lun-2"}}
	lu, _, _ := f.look()
	if condition(lu, "Ready") != "False Invalid" || condition(lu, "Published") != "False Invalid" || len(f.calls) != 1 {
		t.Fatalf("%+v, %v", lu.Status, f.calls)
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Hosts, lu.Spec.Destroy = nil, true })
	if err := f.c.Delete(f.Context(), lu); err != nil {
		t.Fatal(err)
	}
	if lu, _, _ := f.look(); condition(lu, "Ready") != "False Invalid" || len(f.calls) != 1 {
		t.Fatalf("%+v, %v", lu.Status, f.calls)
	}
}

// A reconcile whose cache is stale (a new leader, a watch that broke off) changes nothing at the
// pair: another reconcile may have done since what the newer spec says.
func TestStaleCacheChangesNothing(t *testing.T) {
	const a, b = "iqn.2026-11.x:a", "iqn.2026-11.x:b"
	for _, c := range []struct {
		would string // do, if it took the cache for the truth
		old   func(*v1alpha1.LogicalUnitSpec)
	}{
		{"unmap a host that was added", func(s *v1alpha1.LogicalUnitSpec) { s.Hosts = nil }},
		{"map a host that is fenced", func(s *v1alpha1.LogicalUnitSpec) { s.Hosts = append(s.Hosts, v1alpha1.HostAccess{IQN: b}) }},
		{"give the place of one host to another", func(s *v1alpha1.LogicalUnitSpec) { s.Hosts = []v1alpha1.HostAccess{{IQN: b}} }},
		{"let a host write that may only read", func(s *v1alpha1.LogicalUnitSpec) { s.Hosts[0].ReadOnly = true }},
		{"expand", func(s *v1alpha1.LogicalUnitSpec) { s.Size = resource.MustParse("1Gi") }},
		{"set an old write cache mode", func(s *v1alpha1.LogicalUnitSpec) { s.WriteCache = v1alpha1.WriteThrough }},
		{"set an old preferred node", func(s *v1alpha1.LogicalUnitSpec) { s.PreferredNode = "b" }},
		{"pin", func(s *v1alpha1.LogicalUnitSpec) { s.PinnedNode = "b" }},
	} {
		t.Run(c.would, func(t *testing.T) {
			f := setup(t, hosts(a))
			now, _, _ := f.look()
			if len(now.Status.Hosts) != 1 {
				t.Fatalf("%+v", now.Status)
			}
			old := now.DeepCopy()
			c.old(&old.Spec)
			f.r.Client = interceptor.NewClient(f.c.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if lu, ok := o.(*v1alpha1.LogicalUnit); ok {
					old.DeepCopyInto(lu)
					lu.Generation--
					return nil
				}
				return w.Get(ctx, key, o, opts...)
			}})
			lu, res, err := f.look()
			if err != nil || res.RequeueAfter == 0 || len(lu.Status.Hosts) != 1 {
				t.Errorf("%+v, %v, %v", lu.Status, res, err)
			}
			if len(f.calls) != 1 || f.calls[0] != "get" {
				t.Errorf("it asked the pair to %q", f.calls)
			}
		})
	}
}

func TestDiskLabelsDescribeTheSpec(t *testing.T) {
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-1"}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Shared: true,
		Source: &v1alpha1.Source{Snapshot: "snap-1"}, Volume: &v1alpha1.VolumeInfo{Name: "pvc-1", PVC: "data", Namespace: "team"}}}
	want := map[string]string{"gemel.storage/logical-unit": "lun-1", "gemel.storage/cluster": "c", "gemel.storage/source-snapshot": "snap-1",
		"csi.gemel.storage/access": "multi", "csi.gemel.storage/fstype": "block", "csi.gemel.storage/name": "pvc-1",
		"csi.storage.k8s.io/pv/name": "pvc-1", "csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "team"}
	got := diskLabels(lu)
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %q, not %q", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Error(got)
	}
}
