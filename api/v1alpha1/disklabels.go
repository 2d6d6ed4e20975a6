package v1alpha1

// Labels that go with a volume to the disks: with what they say, its objects can be made again from a LUN. A LUN without
// them was not made by CSI.
const (
	DiskLabelName   = "csi.gemel.storage/name"   // the CSI name
	DiskLabelFSType = "csi.gemel.storage/fstype" // FSTypeBlock for raw block volumes
	DiskLabelAccess = "csi.gemel.storage/access" // AccessSingle or AccessMulti

	FSTypeBlock  = "block"
	AccessSingle = "single" // one node at a time
	AccessMulti  = "multi"

	// What the external-provisioner says with --extra-create-metadata.
	DiskLabelPV        = "csi.storage.k8s.io/pv/name"
	DiskLabelPVC       = "csi.storage.k8s.io/pvc/name"
	DiskLabelNamespace = "csi.storage.k8s.io/pvc/namespace"
)
