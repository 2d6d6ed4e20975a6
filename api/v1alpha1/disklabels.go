package v1alpha1

import (
	"fmt"
	"strconv"
)

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

// Labels on the disks of a leg of a striped volume, or of its snapshot. With them the images of one
// node can be assembled by hand.
const (
	diskLabelLeg    = "gemel.storage/leg"          // its number, from 0
	diskLabelLegs   = "gemel.storage/legs"         // how many there are
	diskLabelStripe = "gemel.storage/stripe-bytes" // of a stripe
	diskLabelWhole  = "gemel.storage/striped-uuid" // of the volume or the snapshot
)

// LegName is the name of the object of a leg; of is that of the whole.
func LegName(of string, number int) string { return fmt.Sprintf("%s-%d", of, number) }

// SetDiskLabels adds the labels of a leg; those of what is no leg, nil, are none.
func (l *Leg) SetDiskLabels(m map[string]string) {
	if l == nil {
		return
	}
	m[LabelStriped], m[diskLabelWhole] = l.Of, l.UUID
	m[diskLabelLeg], m[diskLabelLegs], m[diskLabelStripe] = strconv.Itoa(int(l.Number)), strconv.Itoa(int(l.LUNs)), strconv.Itoa(int(l.StripeBytes))
}

// LegFromDisk is the reverse of SetDiskLabels; nil: what has these labels is no leg.
func LegFromDisk(m map[string]string) (*Leg, error) {
	l := &Leg{Of: m[LabelStriped], UUID: m[diskLabelWhole]}
	if l.Of == "" {
		return nil, nil
	}
	for k, to := range map[string]*int32{diskLabelLeg: &l.Number, diskLabelLegs: &l.LUNs, diskLabelStripe: &l.StripeBytes} {
		n, err := strconv.ParseInt(m[k], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("label %s: %q is no number", k, m[k])
		}
		*to = int32(n)
	}
	return l, nil
}
