package logicalunit

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A striped volume and its legs come back from the labels on the disks, with all hosts of any leg.
func TestStripedVolumeFromDisk(t *testing.T) {
	f := striped(t)
	f.spec(func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Volume = &v1alpha1.VolumeInfo{Name: "pvc-1", PVC: "data", Namespace: "team", FSType: "xfs"}
		hosts("iqn.h")(lu)
	})
	volume, _, _ := f.look()
	var legs []*v1alpha1.LogicalUnit
	for i := range 3 {
		leg := f.leg(i)
		leg.Spec.Placement = &v1alpha1.Placement{Pair: "p", UUID: uuidOfSource}
		l := &targetv1.LUN{Uuid: uuidOfSource, Name: leg.Name, SizeBytes: uint64(leg.Spec.Size.Value()), Labels: diskLabels(leg), Volume: v1alpha1.DefaultVolume}
		if i == 1 { // the others have lost it
			l.Mappings = []*targetv1.Mapping{{HostIqn: "iqn.h"}}
		}
		back, err := FromDisk("p", l)
		if err != nil || *back.Spec.Leg != *leg.Spec.Leg || back.Name != leg.Name || back.Labels[v1alpha1.LabelStriped] != volume.Name {
			t.Fatalf("%+v, %v", back, err)
		}
		legs = append(legs, back)
	}
	got := VolumeOf([]*v1alpha1.LogicalUnit{legs[2], legs[0], legs[1]})
	volume.Spec.Placement.Pool = got.Spec.Placement.Pool
	if got.Name != volume.Name || got.Annotations[v1alpha1.AnnotationMade] != "true" || !equality.Semantic.DeepEqual(got.Spec, volume.Spec) {
		t.Errorf("%+v, was %+v", got.Spec, volume.Spec)
	}
	damaged := diskLabels(f.leg(0))
	damaged["gemel.storage/legs"] = "three"
	if back, err := FromDisk("p", &targetv1.LUN{Uuid: uuidOfSource, Labels: damaged}); err == nil {
		t.Errorf("%+v", back)
	}
}
