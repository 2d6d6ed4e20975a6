package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func clientOf(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refused waits for a policy that was just made to refuse something, which it does a moment later.
func refused(t *testing.T, says string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = try(); err != nil && strings.Contains(err.Error(), says) {
			return
		}
	}
	t.Fatalf("%v, want %q", err, says)
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func lun(name string, placed, destroy bool) *v1alpha1.LogicalUnit {
	o := &v1alpha1.LogicalUnit{ObjectMeta: meta(name), Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Size: resource.MustParse("1Gi"), Destroy: destroy}}
	if placed {
		o.Spec.Placement = &v1alpha1.Placement{Pair: "c-p0", UUID: "0d3bb1ae-6bd5-4d46-9d7b-0f7bfd3de7d5"}
	}
	return o
}

func snapshot(name string, placed, destroy bool) *v1alpha1.LogicalUnitSnapshot {
	o := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: meta(name), Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c", Source: "x", Destroy: destroy}}
	if placed {
		o.Spec.Placement = &v1alpha1.SnapshotPlacement{Pair: "c-p0", UUID: "0d3bb1ae-6bd5-4d46-9d7b-0f7bfd3de7d5", SourceUUID: "1d3bb1ae-6bd5-4d46-9d7b-0f7bfd3de7d5"}
	}
	return o
}

func group(name string, destroy bool) *v1alpha1.LogicalUnitGroupSnapshot {
	return &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: meta(name), Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: "c", Destroy: destroy,
		Members: []v1alpha1.GroupSnapshotMember{{Source: "x", Snapshot: name + "-0"}}}}
}

func targetPair(name string, luns int32) *v1alpha1.TargetPair {
	return &v1alpha1.TargetPair{ObjectMeta: meta(name), Spec: v1alpha1.TargetPairSpec{Cluster: "c", Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}},
		Status: v1alpha1.TargetPairStatus{LogicalUnits: luns}}
}

func storageCluster(name string, luns int32) *v1alpha1.StorageCluster {
	return &v1alpha1.StorageCluster{ObjectMeta: meta(name), Spec: v1alpha1.StorageClusterSpec{Pairs: 1,
		Pools: []v1alpha1.Pool{{Name: "default", StorageClassName: "disks", Size: resource.MustParse("10Gi")}}}, Status: v1alpha1.StorageClusterStatus{LogicalUnits: luns}}
}

func host(name string, attached int32) *v1alpha1.Host {
	return &v1alpha1.Host{ObjectMeta: meta(name), Spec: v1alpha1.HostSpec{IQN: "iqn.2026-11.storage.gemel:" + name, AttachMode: "Userspace"},
		Status: v1alpha1.HostStatus{Attached: attached}}
}

// The mark of data that was created stays, no matter who edits the object, and everything else may
// change.
func TestKeepsTheMarkOfData(t *testing.T) {
	cfg := envtest.Config(t)
	list, err := Data()
	apply(t, cfg, list, err)
	ctx := context.Background()
	c := clientOf(t, cfg)
	const says = "gemel.storage/made says that the data was created on the disks"
	for _, o := range []client.Object{lun("made", true, false), snapshot("made", true, false), group("made", false)} {
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		set := func(value string, more ...client.UpdateOption) error {
			next := o.DeepCopyObject().(client.Object)
			next.SetAnnotations(map[string]string{"other": "x", v1alpha1.AnnotationMade: value})
			if value == "" {
				next.SetAnnotations(nil)
			}
			err := c.Update(ctx, next, more...)
			if err == nil && len(more) == 0 {
				o.SetResourceVersion(next.GetResourceVersion())
			}
			return err
		}
		for _, value := range []string{"", "false", "true"} { // not made yet
			if err := set(value); err != nil {
				t.Fatalf("%T, %q: %v", o, value, err)
			}
		}
		refused(t, says, func() error { return set("", client.DryRunAll) })
		for _, value := range []string{"", "false"} {
			if err := set(value); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), says) {
				t.Errorf("%T, %q: %v", o, value, err)
			}
		}
		if err := set("true"); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	}
}

// Objects that hold data or are used are not deleted by mistake, one by one or all at once; objects
// that are empty or given up can be deleted.
func TestKeepsData(t *testing.T) {
	cfg := envtest.Config(t)
	list, err := Data()
	apply(t, cfg, list, err)
	ctx := context.Background()
	c := clientOf(t, cfg)
	create := func(o client.Object) client.Object {
		t.Helper()
		filled := o.DeepCopyObject().(client.Object)
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		filled.SetResourceVersion(o.GetResourceVersion())
		if err := c.Status().Update(ctx, filled); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for i, x := range []struct {
		keep client.Object
		says string
		free []client.Object
	}{
		{lun("kept", true, false), "it holds data: delete its PersistentVolumeClaim or VolumeSnapshot",
			[]client.Object{lun("nowhere", false, false), lun("destroyed", true, true)}},
		{snapshot("kept", true, false), "it holds data: delete its PersistentVolumeClaim or VolumeSnapshot",
			[]client.Object{snapshot("nowhere", false, false), snapshot("destroyed", true, true)}},
		{group("kept", false), "its snapshots hold data: delete its VolumeGroupSnapshot", []client.Object{group("destroyed", true)}},
		{targetPair("kept", 2), "it holds 2 LUNs: delete their volumes first", []client.Object{targetPair("empty", 0)}},
		{storageCluster("kept", 3), "it holds 3 LUNs: delete their volumes first", []client.Object{storageCluster("empty", 0)}},
		{host("kept", 4), "its worker holds 4 LUNs: drain the worker first", []client.Object{host("empty", 0)}},
	} {
		o := create(x.keep)
		if i == 0 {
			refused(t, x.says, func() error { return c.Delete(ctx, o, client.DryRunAll) })
		}
		if err := c.Delete(ctx, o); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%T: %v, want %q", o, err, x.says)
		}
		if err := c.DeleteAllOf(ctx, o); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("all of %T: %v, want %q", o, err, x.says)
		}
		for _, f := range x.free {
			if err := c.Delete(ctx, create(f)); err != nil {
				t.Errorf("%T %s: %v", f, f.GetName(), err)
			}
		}
	}
	// The Host of a worker that is gone goes with its Node.
	as := rest.CopyConfig(cfg)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:generic-garbage-collector", Groups: []string{"system:masters"}}
	if err := clientOf(t, as).Delete(ctx, host("kept", 0)); err != nil {
		t.Error(err)
	}
}

// A StorageClass that cannot work is refused when it is made, with the name of the parameter and
// what is supported.
func TestStorageClass(t *testing.T) {
	cfg := envtest.Config(t)
	list, err := StorageClass()
	apply(t, cfg, list, err)
	ctx := context.Background()
	c := clientOf(t, cfg)
	try := func(name string, parameters map[string]string) error {
		return c.Create(ctx, &storagev1.StorageClass{ObjectMeta: meta(name), Provisioner: v1alpha1.DriverName, Parameters: parameters}, client.DryRunAll)
	}
	refused(t, "parameters.cluster: is needed", func() error { return try("none", nil) })
	const fstype = v1alpha1.ParamFSType
	for i, x := range []struct {
		parameters map[string]string
		says       []string
	}{
		{map[string]string{"cluster": ""}, []string{"parameters.cluster: is needed"}},
		{map[string]string{"cluster": "Main"}, []string{`parameters.cluster: "Main"`}},
		{map[string]string{"cluster": "main", "replicas": "2", "thin": "no"}, []string{"replicas", "thin", " are unknown: supported parameters are cluster, luns, iops, stripeSize, spread, sessions, pool, preferredNode"}},
		{map[string]string{"cluster": "main", "thin": "no"}, []string{"parameters: thin is unknown: supported parameters are cluster, luns, iops, stripeSize, spread, sessions, pool"}},
		{map[string]string{"cluster": "main", "writeCache": "writethrough"}, []string{`parameters.writeCache: "writethrough"`}},
		{map[string]string{"cluster": "main", "writeCache": "write-through"}, nil},
		{map[string]string{"cluster": "main", "tier": "fast"}, []string{`parameters.tier: "fast" is no tier`}},
		{map[string]string{"cluster": "main", "tier": "Fast"}, nil},
		{map[string]string{"cluster": "main", "pool": "Fast"}, []string{`parameters.pool: "Fast"`, "up to 32 of a-z"}},
		{map[string]string{"cluster": "main", "pool": "fast-2"}, nil},
		{map[string]string{"cluster": "main", "preferredNode": "c"}, []string{`parameters.preferredNode: "c"`}},
		{map[string]string{"cluster": "main", "pinnedNode": "c"}, []string{`parameters.pinnedNode: "c"`, "a, b, none"}},
		{map[string]string{"cluster": "main", "pinnedNode": "b", "preferredNode": "a"}, []string{"parameters.preferredNode: pinnedNode is another node"}},
		{map[string]string{"cluster": "main", "pinnedNode": "none", "preferredNode": "a"}, nil},
		{map[string]string{"cluster": "main", "pinnedNode": "b"}, nil},
		{map[string]string{"cluster": "main", fstype: "btrfs"}, []string{fstype + `: "btrfs"`, "xfs or ext4"}},
		{map[string]string{"cluster": "main"}, nil},
		{map[string]string{"cluster": "main", "luns": "4"}, nil},
		{map[string]string{"cluster": "main", "luns": "16", "stripeSize": "64Ki", "pinnedNode": "none"}, nil},
		{map[string]string{"cluster": "main", "luns": "1"}, nil},
		{map[string]string{"cluster": "main", "sessions": "8"}, nil},
		{map[string]string{"cluster": "main", "sessions": ""}, nil},
		{map[string]string{"cluster": "main", "sessions": "9"}, []string{`parameters.sessions: "9"`, "1 to 8"}},
		{map[string]string{"cluster": "main", "sessions": "two"}, []string{`parameters.sessions: "two"`, "1 to 8"}},
		{map[string]string{"cluster": "main", "luns": "4", "spread": "pairs"}, nil},
		{map[string]string{"cluster": "main", "iops": "200000", "spread": "nodes"}, nil},
		{map[string]string{"cluster": "main", "luns": "4", "spread": "workers"}, []string{`parameters.spread: "workers"`, "nodes or pairs"}},
		{map[string]string{"cluster": "main", "spread": "pairs"}, []string{"parameters.spread", "several LUNs"}},
		{map[string]string{"cluster": "main", "luns": "1", "spread": "pairs"}, []string{"parameters.spread", "several LUNs"}},
		{map[string]string{"cluster": "main", "iops": "200000", "stripeSize": "64Ki"}, nil},
		{map[string]string{"cluster": "main", "iops": "50000", "preferredNode": "a"}, nil},
		{map[string]string{"cluster": "main", "iops": "800000"}, nil},
		{map[string]string{"cluster": "main", "iops": "800001"}, []string{`parameters.iops: "800001"`, "1 to 800000"}},
		{map[string]string{"cluster": "main", "iops": "0"}, []string{`parameters.iops: "0"`}},
		{map[string]string{"cluster": "main", "iops": "9999999999"}, []string{`parameters.iops: "9999999999"`}},
		{map[string]string{"cluster": "main", "iops": "fast"}, []string{`parameters.iops: "fast"`}},
		{map[string]string{"cluster": "main", "iops": "200000", "luns": "4"}, []string{"parameters.iops", "luns"}},
		{map[string]string{"cluster": "main", "iops": "50000", "stripeSize": "64Ki"}, []string{"parameters.stripeSize", "iops"}},
		{map[string]string{"cluster": "main", "iops": "50001", "preferredNode": "a"}, []string{"parameters.iops", "preferredNode"}},
		{map[string]string{"cluster": "main", "luns": "17"}, []string{`parameters.luns: "17"`, "1 to 16"}},
		{map[string]string{"cluster": "main", "luns": "0"}, []string{`parameters.luns: "0"`}},
		{map[string]string{"cluster": "main", "luns": "four"}, []string{`parameters.luns: "four"`}},
		{map[string]string{"cluster": "main", "luns": "4", "stripeSize": "48Ki"}, []string{`parameters.stripeSize: "48Ki"`}},
		{map[string]string{"cluster": "main", "stripeSize": "64Ki"}, []string{"parameters.stripeSize", "several LUNs"}},
		{map[string]string{"cluster": "main", "luns": "2", "preferredNode": "a"}, []string{"parameters.luns", "both nodes"}},
		{map[string]string{"cluster": "main", "preferredNode": "b", fstype: "ext4", "csi.storage.k8s.io/node-stage-secret-name": "x"}, nil},
	} {
		err := try(fmt.Sprintf("class-%d", i), x.parameters)
		if len(x.says) == 0 && err != nil {
			t.Errorf("%v: %v", x.parameters, err)
		}
		for _, s := range x.says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%v: %v, want %q", x.parameters, err, s)
			}
		}
	}
	other := &storagev1.StorageClass{ObjectMeta: meta("other"), Provisioner: "example.org/disk", Parameters: map[string]string{"any": "thing"}}
	if err := c.Create(ctx, other, client.DryRunAll); err != nil {
		t.Errorf("a class of another provisioner: %v", err)
	}
}
