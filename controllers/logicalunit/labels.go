package logicalunit

import (
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// Labels that only the operator keeps on the disks, beside those of the CSI driver.
const (
	LabelObject  = "gemel.storage/logical-unit" // the object's name, which is the CSI volume handle
	LabelCluster = v1alpha1.LabelCluster
	LabelLUN     = "gemel.storage/source-logical-unit"
	LabelSnap    = "gemel.storage/source-snapshot"
)

// diskLabels is what the disks keep of an object, so that it can be made again from them: with the LUN's uuid, name, size, hosts
// and preferred node they are all of its spec.
func diskLabels(lu *v1alpha1.LogicalUnit) map[string]string {
	m := map[string]string{LabelObject: lu.Name, LabelCluster: lu.Spec.Cluster, backend.LabelAccess: backend.AccessSingle}
	if lu.Spec.Shared {
		m[backend.LabelAccess] = backend.AccessMulti
	}
	if s := lu.Spec.Source; s != nil {
		put(m, LabelLUN, s.LogicalUnit)
		put(m, LabelSnap, s.Snapshot)
	}
	if v := lu.Spec.Volume; v != nil {
		put(m, backend.LabelName, v.Name)
		put(m, backend.LabelPV, v.Name)
		put(m, backend.LabelPVC, v.PVC)
		put(m, backend.LabelNamespace, v.Namespace)
		m[backend.LabelFSType] = v.FSType
		if v.FSType == "" {
			m[backend.LabelFSType] = backend.FSTypeBlock
		}
	}
	return m
}

func put(m map[string]string, k, v string) {
	if v != "" {
		m[k] = v
	}
}
