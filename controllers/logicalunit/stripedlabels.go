package logicalunit

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// VolumeOf makes the object of a striped volume from its legs on the disks. Its size is that of the
// smallest leg times their number. It lists every host of any leg, because the operator would fence
// a host that the object does not list. The status of the volume says which legs are missing.
func VolumeOf(legs []*v1alpha1.LogicalUnit) *v1alpha1.LogicalUnit {
	first := slices.MinFunc(legs, func(a, b *v1alpha1.LogicalUnit) int { return cmp.Compare(a.Spec.Leg.Number, b.Spec.Leg.Number) })
	l := first.Spec.Leg
	out := &v1alpha1.LogicalUnit{TypeMeta: first.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: l.Of, Labels: map[string]string{v1alpha1.LabelCluster: first.Spec.Cluster},
		Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}}, Spec: *first.Spec.DeepCopy()}
	s := &out.Spec
	s.Leg, s.Striped = nil, &v1alpha1.Striping{LUNs: l.LUNs, StripeBytes: l.StripeBytes}
	s.Placement.UUID, s.Placement.Home, s.PreferredNode, s.PinnedNode = l.UUID, "", "", ""
	if s.Source != nil { // that of the leg: its part of a snapshot, which had the name of the volume if that is a clone
		s.Source.Snapshot = strings.TrimSuffix(s.Source.Snapshot, "-"+strconv.Itoa(int(l.Number)))
	}
	if s.Source != nil && s.Source.Snapshot == l.Of {
		s.Source = nil
	}
	least := first.Spec.Size.Value()
	found := map[int32]string{}
	for _, leg := range legs {
		found[leg.Spec.Leg.Number] = leg.Spec.Placement.Pair
		least = min(least, leg.Spec.Size.Value())
		for _, h := range leg.Spec.Hosts {
			if s.Host(h.IQN) == nil {
				s.Hosts = append(s.Hosts, h)
			}
		}
	}
	if s.Placement.LegPairs = v1alpha1.LegPairsFound(l.LUNs, s.Placement.Pair, found); s.Placement.LegPairs != nil {
		s.Spread = v1alpha1.LegsOverPairs
	}
	s.Size = *resource.NewQuantity(least*int64(l.LUNs), resource.BinarySI)
	return out
}
