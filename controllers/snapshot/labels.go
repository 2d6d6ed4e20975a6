package snapshot

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Labels of snapshots on the disks, from which the object can be recreated.
const (
	LabelObject = "gemel.storage/logical-unit-snapshot" // the object's name, which is the CSI snapshot handle
	LabelSource = "gemel.storage/source-logical-unit"
	LabelGroup  = "gemel.storage/group"
)

// DiskLabels are the labels of a snapshot on the disks.
func DiskLabels(o *v1alpha1.LogicalUnitSnapshot) map[string]string {
	m := map[string]string{LabelObject: o.Name, v1alpha1.LabelCluster: o.Spec.Cluster, LabelSource: o.Spec.Source}
	if o.Spec.Name != "" {
		m[v1alpha1.DiskLabelName] = o.Spec.Name
	}
	if o.Spec.Placement != nil && o.Spec.Placement.Pool != "" {
		m[v1alpha1.LabelPool] = o.Spec.Placement.Pool
	}
	if o.Spec.Group != "" {
		m[LabelGroup] = o.Spec.Group
	}
	o.Spec.Leg.SetDiskLabels(m)
	return m
}

// ErrForeign: a snapshot on the disks that no operator took, so that its object is unknown.
var ErrForeign = errors.New("its labels name no Kubernetes object")

// FromDisk returns the object of a snapshot from its labels on the disks. ErrForeign.
func FromDisk(pair string, s *targetv1.Snapshot) (*v1alpha1.LogicalUnitSnapshot, error) {
	name, cluster, source := s.Labels[LabelObject], s.Labels[v1alpha1.LabelCluster], s.Labels[LabelSource]
	if name == "" || cluster == "" || source == "" {
		return nil, fmt.Errorf("snapshot %s (%s) of %s: %w", s.Uuid, s.Name, pair, ErrForeign)
	}
	leg, err := v1alpha1.LegFromDisk(s.Labels)
	if err != nil {
		return nil, fmt.Errorf("snapshot %s (%s) of %s: %w", s.Uuid, s.Name, pair, err)
	}
	pool := s.Labels[v1alpha1.LabelPool]
	if pool == "" && s.Volume != v1alpha1.DefaultVolume {
		pool = s.Volume
	}
	o := &v1alpha1.LogicalUnitSnapshot{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "LogicalUnitSnapshot"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelCluster: cluster},
			Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
		Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: cluster, Source: source, Name: s.Labels[v1alpha1.DiskLabelName], Group: s.Labels[LabelGroup],
			Leg: leg, Placement: &v1alpha1.SnapshotPlacement{Pair: pair, Pool: pool, UUID: s.Uuid, SourceUUID: s.SourceLunUuid}}}
	if leg != nil {
		o.Labels[v1alpha1.LabelStriped] = leg.Of
	}
	return o, nil
}
