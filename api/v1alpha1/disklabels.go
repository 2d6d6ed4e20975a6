package v1alpha1

// Labels of a volume on the disks, from which its objects can be recreated. A LUN without them was
// not created by CSI.
const (
	DiskLabelName   = "csi.gemel.storage/name"   // the CSI name
	DiskLabelFSType = "csi.gemel.storage/fstype" // FSTypeBlock for raw block volumes
	DiskLabelAccess = "csi.gemel.storage/access" // AccessSingle or AccessMulti

	FSTypeBlock  = "block"
	AccessSingle = "single" // one node at a time
	AccessMulti  = "multi"

	// Set by the external-provisioner with --extra-create-metadata.
	DiskLabelPV        = "csi.storage.k8s.io/pv/name"
	DiskLabelPVC       = "csi.storage.k8s.io/pvc/name"
	DiskLabelNamespace = "csi.storage.k8s.io/pvc/namespace"
)
