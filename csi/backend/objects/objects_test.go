package objects

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// IDs must never change: a repeated create would not find its volume.
func TestIDsAreStable(t *testing.T) {
	b := New(nil)
	if got := b.VolumeID("pvc-1"); got != "lun-2ffc2e62712cf16f7f7a8fd11c1e52a3" {
		t.Error(got)
	}
	seen := map[string]bool{}
	for _, id := range []string{b.VolumeID("pvc-1"), b.VolumeID("pvc-2"), b.SnapshotID("pvc-1"), b.VolumeID("späte Größe\n")} {
		if seen[id] || !validName.MatchString(id) {
			t.Error(id)
		}
		seen[id] = true
	}
}

// A volume survives the conversion to an object and back.
func TestVolumeConvertsToAnObjectAndBack(t *testing.T) {
	for _, q := range []backend.CreateVolume{
		{ID: "lun-1", Name: "pvc-1", Size: 5 << 20, Cluster: "main", Mutable: backend.Mutable{PreferredNode: "b", PinnedNode: "b", WriteCache: v1alpha1.WriteThrough, Tier: v1alpha1.TierFast}, SourceVolume: "lun-0", Labels: map[string]string{
			v1alpha1.DiskLabelName: "pvc-1", v1alpha1.DiskLabelFSType: "xfs", v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle, v1alpha1.DiskLabelPV: "pvc-1", v1alpha1.DiskLabelPVC: "data", v1alpha1.DiskLabelNamespace: "ns"}},
		{ID: "lun-2", Name: "pvc-2", Size: 1 << 20, Cluster: "main", SourceSnapshot: "snap-1", Labels: map[string]string{
			v1alpha1.DiskLabelName: "pvc-2", v1alpha1.DiskLabelFSType: v1alpha1.FSTypeBlock, v1alpha1.DiskLabelAccess: v1alpha1.AccessMulti, v1alpha1.DiskLabelPV: "pvc-2"}},
	} {
		lu := unitOf(q)
		lu.Status.Size, lu.Status.PreferredNode, lu.Status.PinnedNode, lu.Status.WriteCache, lu.Status.Tier = &lu.Spec.Size, lu.Spec.PreferredNode, lu.Spec.PinnedNode, lu.Spec.WriteCache, lu.Spec.Tier
		v, mutable := volume(lu), q.Mutable.Over(backend.Mutable{PinnedNode: v1alpha1.NoPin, Tier: v1alpha1.NoPin})
		if v.ID != q.ID || v.Name != q.Name || v.Size != q.Size || v.SourceVolume != q.SourceVolume || v.SourceSnapshot != q.SourceSnapshot || !equal(v.Labels, q.Labels) ||
			v.Mutable != mutable {
			t.Errorf("%+v became %+v", q, v)
		}
		if err := sameSpec(lu, unitOf(q)); err != nil {
			t.Error(err)
		}
		for _, change := range []func(*backend.CreateVolume){
			func(q *backend.CreateVolume) { q.Size *= 2 }, func(q *backend.CreateVolume) { q.Name += "x" }, func(q *backend.CreateVolume) { q.Cluster = "other" },
			func(q *backend.CreateVolume) { q.SourceVolume, q.SourceSnapshot = "", "" },
			func(q *backend.CreateVolume) { q.Labels = map[string]string{v1alpha1.DiskLabelFSType: "ext4"} },
		} {
			other := q
			change(&other)
			if err := sameSpec(lu, unitOf(other)); !errors.Is(err, backend.ErrExists) {
				t.Errorf("%+v passes for %+v: %v", q, other, err)
			}
		}
	}
	// Created manually: no labels, so that any access is supported.
	if v := volume(&v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}); len(v.Labels) != 0 || v.Name != "mine" {
		t.Errorf("%+v", v)
	}
}

func TestAddHostChecksOtherHosts(t *testing.T) {
	const a, b = "iqn.2026-11.x:a", "iqn.2026-11.x:b"
	for name, c := range map[string]struct {
		spec, status []string
		shared       bool
		exclusive    bool
		readOnly     bool
		err          error
		hosts        int
	}{
		"first":                 {nil, nil, false, true, false, nil, 1},
		"again":                 {[]string{a}, []string{a}, false, true, false, nil, 1},
		"upper case":            {[]string{"iqn.2026-11.x:A"}, nil, false, true, false, nil, 1},
		"again, read-only":      {[]string{a}, nil, false, true, true, backend.ErrExists, 1},
		"another":               {[]string{b}, nil, false, true, false, backend.ErrInUse, 1},
		"another, being fenced": {nil, []string{b}, false, true, false, backend.ErrInUse, 0},
		"another, not shared":   {[]string{b}, nil, false, false, false, backend.ErrInUse, 1},
		"another, shared":       {[]string{b}, []string{b}, true, false, false, nil, 2},
		"shared, exclusive":     {[]string{b}, nil, true, true, false, backend.ErrInUse, 1},
		"itself, being fenced":  {nil, []string{a}, false, true, false, nil, 1},
	} {
		lu := &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Shared: c.shared}}
		for _, h := range c.spec {
			lu.Spec.Hosts = append(lu.Spec.Hosts, v1alpha1.HostAccess{IQN: h})
		}
		for _, h := range c.status {
			lu.Status.Hosts = append(lu.Status.Hosts, v1alpha1.HostMapping{IQN: h})
		}
		err := addHost(lu, backend.Publish{HostIQN: a, Exclusive: c.exclusive, ReadOnly: c.readOnly})
		if !errors.Is(err, c.err) || len(lu.Spec.Hosts) != c.hosts {
			t.Errorf("%s: %v, %v", name, lu.Spec.Hosts, err)
		}
	}
	// One writer and several readers: decided in the update of the spec, so that of two publishers
	// one fails.
	readers := &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Shared: true, Hosts: []v1alpha1.HostAccess{{IQN: b, ReadOnly: true}}}}
	if err := addHost(readers.DeepCopy(), backend.Publish{HostIQN: a, OneWriter: true}); err != nil {
		t.Error(err)
	}
	for _, writer := range []*v1alpha1.LogicalUnit{
		{Spec: v1alpha1.LogicalUnitSpec{Shared: true, Hosts: []v1alpha1.HostAccess{{IQN: b}}}},
		{Spec: v1alpha1.LogicalUnitSpec{Shared: true}, Status: v1alpha1.LogicalUnitStatus{Hosts: []v1alpha1.HostMapping{{IQN: b}}}}, // being fenced
	} {
		if err := addHost(writer.DeepCopy(), backend.Publish{HostIQN: a, OneWriter: true}); !errors.Is(err, backend.ErrInUse) {
			t.Error(err)
		}
		for _, q := range []backend.Publish{{HostIQN: a, OneWriter: true, ReadOnly: true}, {HostIQN: b, OneWriter: true}, {HostIQN: a}} {
			if err := addHost(writer.DeepCopy(), q); err != nil {
				t.Errorf("%+v: %v", q, err)
			}
		}
	}
	if err := addHost(&v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Destroy: true}}, backend.Publish{HostIQN: a}); !errors.Is(err, backend.ErrNotFound) {
		t.Error(err)
	}
}

// Of the hosts that a filesystem is published to read-only, the first one replays its log,
// exclusively, unless it was replayed before.
func TestFirstReaderReplaysTheLog(t *testing.T) {
	const a, b = "iqn.2026-11.x:a", "iqn.2026-11.x:b"
	spec := func(h ...v1alpha1.HostAccess) *v1alpha1.LogicalUnit {
		return &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Shared: true, Hosts: h}}
	}
	status := func(lu *v1alpha1.LogicalUnit, h ...v1alpha1.HostMapping) *v1alpha1.LogicalUnit {
		lu.Status.Hosts = h
		return lu
	}
	done := func(lu *v1alpha1.LogicalUnit) *v1alpha1.LogicalUnit {
		lu.Annotations = map[string]string{v1alpha1.AnnotationReplayed: "true"}
		return lu
	}
	replaying := v1alpha1.HostAccess{IQN: b, ReadOnly: true, Replay: true}
	for name, c := range map[string]struct {
		lu     *v1alpha1.LogicalUnit
		err    error
		replay bool
	}{
		"first":                           {spec(), nil, true},
		"again":                           {spec(v1alpha1.HostAccess{IQN: a, ReadOnly: true, Replay: true}), nil, true},
		"again, done":                     {done(spec(v1alpha1.HostAccess{IQN: a, ReadOnly: true})), nil, false},
		"done before":                     {done(spec()), nil, false},
		"another replays":                 {spec(replaying), backend.ErrUnavailable, false},
		"another has, and is not fenced":  {done(status(spec(v1alpha1.HostAccess{IQN: b, ReadOnly: true}), v1alpha1.HostMapping{IQN: b})), backend.ErrUnavailable, false},
		"another died, and is not fenced": {status(spec(), v1alpha1.HostMapping{IQN: b}), backend.ErrUnavailable, false},
		"another has":                     {done(status(spec(v1alpha1.HostAccess{IQN: b, ReadOnly: true}), v1alpha1.HostMapping{IQN: b, ReadOnly: true})), nil, false},
		"another reads what was never":    {status(spec(v1alpha1.HostAccess{IQN: b, ReadOnly: true}), v1alpha1.HostMapping{IQN: b, ReadOnly: true}), nil, false},
		"another read, and is not fenced": {status(spec(), v1alpha1.HostMapping{IQN: b, ReadOnly: true}), backend.ErrUnavailable, false},
		"itself, not fenced":              {status(spec(), v1alpha1.HostMapping{IQN: a, ReadOnly: true}), nil, true},
	} {
		err := addHost(c.lu, backend.Publish{HostIQN: a, ReadOnly: true, Replay: true})
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if at := len(c.lu.Spec.Hosts) - 1; err == nil && (c.lu.Spec.Hosts[at].IQN != a || !c.lu.Spec.Hosts[at].ReadOnly || c.lu.Spec.Hosts[at].Replay != c.replay) {
			t.Errorf("%s: %+v", name, c.lu.Spec.Hosts)
		}
	}
	// A writer may crash and leave a dirty log.
	lu := done(spec())
	if err := addHost(lu, backend.Publish{HostIQN: a, Exclusive: true}); err != nil || lu.Annotations[v1alpha1.AnnotationReplayed] != "" {
		t.Errorf("%+v, %v", lu.Annotations, err)
	}
	lu = done(spec())
	if err := addHost(lu, backend.Publish{HostIQN: a, ReadOnly: true}); err != nil || lu.Annotations[v1alpha1.AnnotationReplayed] != "true" {
		t.Errorf("%+v, %v", lu.Annotations, err)
	}
}

func TestVerdictsOfConditions(t *testing.T) {
	c := func(reason string, status metav1.ConditionStatus, generation int64) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: "why", ObservedGeneration: generation}}
	}
	for reason, want := range map[string]error{v1alpha1.ReasonNoRoom: backend.ErrExhausted, v1alpha1.ReasonInvalid: backend.ErrInvalid,
		v1alpha1.ReasonNoSource: backend.ErrNotFound, v1alpha1.ReasonPairDown: nil, v1alpha1.ReasonNotConfirmed: nil, v1alpha1.ReasonProgressing: nil} {
		if err := verdict("x", failed(c(reason, "False", 2), "Ready", 2)); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", reason, err)
		}
	}
	if failed(c("NoRoom", "False", 1), "Ready", 2) != nil || failed(c("Ready", "True", 2), "Ready", 2) != nil || failed(nil, "Ready", 0) != nil {
		t.Error("an old or True condition was taken for a failure")
	}
}

func TestPagesContinueAfterDeletedObjects(t *testing.T) {
	all := func() []string { return []string{"c", "a", "b"} }
	name := func(s *string) string { return *s }
	var got []string
	for p := (backend.Page{Limit: 1}); ; {
		list, next, err := page(all(), name, p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, list...)
		if p.After = next; next == "" {
			break
		}
	}
	if !equal(got, []string{"a", "b", "c"}) {
		t.Error(got)
	}
	if list, _, err := page(all(), name, backend.Page{After: "after/aa"}); err != nil || len(list) != 2 {
		t.Error("a token whose object is gone: ", list, err)
	}
	for _, token := range []string{"aa", "after/", "after/No such"} {
		if _, _, err := page(all(), name, backend.Page{After: token}); !errors.Is(err, backend.ErrBadToken) {
			t.Error(token, err)
		}
	}
}

func TestHealthFollowsConditions(t *testing.T) {
	p := func(ready, sync metav1.ConditionStatus) *v1alpha1.TargetPair {
		return &v1alpha1.TargetPair{Status: v1alpha1.TargetPairStatus{Free: resource.NewQuantity(1, resource.BinarySI), Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: ready}, {Type: v1alpha1.ConditionInSync, Status: sync}}}}
	}
	for _, c := range []struct {
		p       *v1alpha1.TargetPair
		serving bool
		reason  string
	}{{p("True", "True"), true, ""}, {p("True", "False"), true, "RedundancyLost"}, {p("False", "False"), false, "PairNotServing"}, {&v1alpha1.TargetPair{}, false, "PairUnknown"}} {
		if h := health(c.p); h.Serving != c.serving || h.Reason != c.reason {
			t.Errorf("%+v", h)
		}
	}
}
