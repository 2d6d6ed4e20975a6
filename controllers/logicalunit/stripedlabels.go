package logicalunit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Labels of the leg of a striped volume on the disks. With them the images of one node can be
// assembled by hand.
const (
	labelLeg    = "gemel.storage/leg"          // its number, from 0
	labelLegs   = "gemel.storage/legs"         // how many there are
	labelStripe = "gemel.storage/stripe-bytes" // of a stripe
	labelVolume = "gemel.storage/striped-uuid" // of the volume
)

func setLeg(m map[string]string, l *v1alpha1.Leg) {
	if l == nil {
		return
	}
	m[v1alpha1.LabelStriped], m[labelVolume] = l.Of, l.UUID
	m[labelLeg], m[labelLegs], m[labelStripe] = strconv.Itoa(int(l.Number)), strconv.Itoa(int(l.LUNs)), strconv.Itoa(int(l.StripeBytes))
}

// legOf is the reverse of setLeg; nil: the LUN is no leg.
func legOf(m map[string]string) (*v1alpha1.Leg, error) {
	l := &v1alpha1.Leg{Of: m[v1alpha1.LabelStriped], UUID: m[labelVolume]}
	if l.Of == "" {
		return nil, nil
	}
	for k, to := range map[string]*int32{labelLeg: &l.Number, labelLegs: &l.LUNs, labelStripe: &l.StripeBytes} {
		n, err := strconv.ParseInt(m[k], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("label %s: %q is no number", k, m[k])
		}
		*to = int32(n)
	}
	return l, nil
}

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
	least := first.Spec.Size.Value()
	for _, leg := range legs {
		least = min(least, leg.Spec.Size.Value())
		for _, h := range leg.Spec.Hosts {
			if s.Host(h.IQN) == nil {
				s.Hosts = append(s.Hosts, h)
			}
		}
	}
	s.Size = *resource.NewQuantity(least*int64(l.LUNs), resource.BinarySI)
	return out
}
