package logicalunit

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Labels of LUNs on the disks that the operator sets in addition to those of the CSI driver.
const (
	LabelObject  = "gemel.storage/logical-unit" // the object's name, which is the CSI volume handle
	LabelCluster = v1alpha1.LabelCluster
	LabelLUN     = "gemel.storage/source-logical-unit"
	LabelSnap    = "gemel.storage/source-snapshot"
	LabelPrefer  = "gemel.storage/preferred-node" // only if the spec names one; otherwise the pair has chosen the node
)

// diskLabels are the labels of a LUN on the disks. With the LUN's UUID, name, size and hosts they
// are the whole spec, so that the object can be recreated from the disks. Consumer and home are
// left out: they are only read before the LUN exists.
func diskLabels(lu *v1alpha1.LogicalUnit) map[string]string {
	m := map[string]string{LabelObject: lu.Name, LabelCluster: lu.Spec.Cluster, v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle}
	if lu.Spec.Shared {
		m[v1alpha1.DiskLabelAccess] = v1alpha1.AccessMulti
	}
	setLabel(m, LabelPrefer, lu.Spec.PreferredNode)
	if lu.Spec.Placement != nil {
		setLabel(m, v1alpha1.LabelPool, lu.Spec.Placement.Pool)
	}
	if s := lu.Spec.Source; s != nil {
		setLabel(m, LabelLUN, s.LogicalUnit)
		setLabel(m, LabelSnap, s.Snapshot)
	}
	setTerms(m, lu.Spec.AccessibleFrom)
	lu.Spec.Leg.SetDiskLabels(m)
	if v := lu.Spec.Volume; v != nil {
		setLabel(m, v1alpha1.DiskLabelName, v.Name)
		setLabel(m, v1alpha1.DiskLabelPV, v.Name)
		setLabel(m, v1alpha1.DiskLabelPVC, v.PVC)
		setLabel(m, v1alpha1.DiskLabelNamespace, v.Namespace)
		m[v1alpha1.DiskLabelFSType] = v.FSType
		if v.FSType == "" {
			m[v1alpha1.DiskLabelFSType] = v1alpha1.FSTypeBlock
		}
	}
	return m
}

func setLabel(m map[string]string, k, v string) {
	if v != "" {
		m[k] = v
	}
}

// ErrForeign: a LUN on the disks that no operator created, so that its object is unknown.
var ErrForeign = errors.New("its labels name no Kubernetes object")

// FromDisk returns the object of a LUN from its labels on the disks, including all hosts: if one
// were missing, the operator would fence a worker that uses the LUN. ErrForeign.
func FromDisk(pair string, l *targetv1.LUN) (*v1alpha1.LogicalUnit, error) {
	name, cluster := l.Labels[LabelObject], l.Labels[LabelCluster]
	if name == "" || cluster == "" {
		return nil, fmt.Errorf("LUN %s (%s) of %s: %w", l.Uuid, l.Name, pair, ErrForeign)
	}
	terms, err := termsOf(l.Labels)
	if err != nil {
		return nil, fmt.Errorf("LUN %s (%s) of %s: %w", l.Uuid, l.Name, pair, err)
	}
	leg, err := v1alpha1.LegFromDisk(l.Labels)
	if err != nil {
		return nil, fmt.Errorf("LUN %s (%s) of %s: %w", l.Uuid, l.Name, pair, err)
	}
	lu := &v1alpha1.LogicalUnit{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "LogicalUnit"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelCluster: cluster},
			Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: cluster, Size: *resource.NewQuantity(int64(l.SizeBytes), resource.BinarySI),
			Shared:         l.Labels[v1alpha1.DiskLabelAccess] == v1alpha1.AccessMulti,
			AccessibleFrom: terms, Leg: leg,
			Placement: &v1alpha1.Placement{Pair: pair, Pool: l.Labels[v1alpha1.LabelPool], UUID: l.Uuid},
			Volume: &v1alpha1.VolumeInfo{Name: cmp.Or(l.Labels[v1alpha1.DiskLabelName], l.Labels[v1alpha1.DiskLabelPV]), PVC: l.Labels[v1alpha1.DiskLabelPVC],
				Namespace: l.Labels[v1alpha1.DiskLabelNamespace], FSType: l.Labels[v1alpha1.DiskLabelFSType]}}}
	if lu.Spec.Placement.Pool == "" && l.Volume != v1alpha1.DefaultVolume { // the first pool, which old LUNs do not name, or the label is lost
		lu.Spec.Placement.Pool = l.Volume
	}
	if l.Volume != v1alpha1.DefaultVolume {
		lu.Spec.Pool = lu.Spec.Placement.Pool // as in the original spec, except for copies, which may have named no pool
	}
	if lu.Spec.Volume.FSType == v1alpha1.FSTypeBlock {
		lu.Spec.Volume.FSType = ""
	}
	if l.Labels[LabelPrefer] != "" {
		lu.Spec.PreferredNode = l.PreferredNode // as last modified
	}
	if leg != nil {
		lu.Labels[v1alpha1.LabelStriped] = leg.Of
	}
	lu.Spec.PinnedNode, lu.Spec.Tier = pinOf(l), v1alpha1.TierOf(l.PinnedTier)
	if l.WriteCache == targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH {
		lu.Spec.WriteCache = l.WriteCache.Word() // the other mode is the default
	}
	if s := (v1alpha1.Source{LogicalUnit: l.Labels[LabelLUN], Snapshot: l.Labels[LabelSnap]}); s != (v1alpha1.Source{}) {
		lu.Spec.Source = &s
	}
	for _, m := range l.Mappings {
		h := v1alpha1.HostAccess{IQN: m.HostIqn, ReadOnly: m.GetReadOnly()}
		// Several hosts never write one filesystem, so this host was replaying the log.
		if lu.Spec.Shared && lu.Spec.Volume.FSType != "" && m.ReadOnly != nil && !h.ReadOnly && len(l.Mappings) == 1 {
			h.ReadOnly, h.Replay = true, true
		}
		lu.Spec.Hosts = append(lu.Spec.Hosts, h)
	}
	return lu, nil
}
