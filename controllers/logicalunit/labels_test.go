package logicalunit

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// The spec of an object is on the disks and is restored from them, including fields that can change
// later.
func TestSpecIsRestoredFromDisk(t *testing.T) {
	want := v1alpha1.LogicalUnitSpec{Cluster: "c", Size: resource.MustParse("8Mi"), Source: &v1alpha1.Source{Snapshot: "snap-1"}, Shared: true,
		Hosts: []v1alpha1.HostAccess{{IQN: "iqn.2026-11.x:a", ReadOnly: true}}, PreferredNode: "b", WriteCache: v1alpha1.WriteThrough,
		AccessibleFrom: []v1alpha1.TopologyTerm{{MatchLabels: map[string]v1alpha1.TopologyValue{"topology.kubernetes.io/zone": "a", "rack": "1"}}},
		Volume:         &v1alpha1.VolumeInfo{Name: "pvc-1", PVC: "data", Namespace: "team", FSType: "xfs"},
		Placement:      &v1alpha1.Placement{Pair: "p", UUID: "01234567-89ab-cdef-0123-456789abcdef"}}
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-1"}, Spec: want}
	l := &targetv1.LUN{Uuid: want.Placement.UUID, Name: "lun-1", SizeBytes: 8 << 20, PreferredNode: "b", WriteCache: targetv1.ParseWriteCache(want.WriteCache),
		Labels: diskLabels(lu), Mappings: []*targetv1.Mapping{{HostIqn: "iqn.2026-11.x:a", ReadOnly: proto.Bool(true)}}}
	got, err := FromDisk("p", l)
	if err != nil || got.Name != "lun-1" || !equality.Semantic.DeepEqual(got.Spec, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	// A host of a shared filesystem that may write was replaying the log, and continues.
	l.Mappings[0].ReadOnly = proto.Bool(false)
	want.Hosts = []v1alpha1.HostAccess{{IQN: "iqn.2026-11.x:a", ReadOnly: true, Replay: true}}
	if got, err = FromDisk("p", l); err != nil || !equality.Semantic.DeepEqual(got.Spec, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	l.Labels = nil
	if _, err := FromDisk("p", l); !errors.Is(err, ErrForeign) {
		t.Fatal(err)
	}
}
