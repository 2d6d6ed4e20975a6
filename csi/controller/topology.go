package controller

import (
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gemel-storage/gemel/csi/identity"
)

// maxSegments is how many keys a segment may have: zone, region, the keys of an administrator and
// the driver's own are fewer.
const maxSegments = 32

// preferredSegment is the first preferred segment without the driver's own key; nil if there is
// none. "The first entry in the list is the most preferred" (CSI, TopologyRequirement): with
// WaitForFirstConsumer it is that of the consumer. The others are not read, however many there are.
func preferredSegment(r *csi.TopologyRequirement) (map[string]string, error) {
	if len(r.GetPreferred()) == 0 {
		return nil, nil
	}
	const field = "accessibility_requirements.preferred[0].segments"
	segments := r.Preferred[0].GetSegments()
	if len(segments) > maxSegments {
		return nil, invalid("%s: %d keys: at most %d are allowed: name fewer keys in --topology-keys of the node plugin (chart: node.topologyKeys)", field, len(segments), maxSegments)
	}
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		v := segments[k]
		if errs := validation.IsQualifiedName(k); len(errs) > 0 {
			return nil, invalid("%s: the key %.80q is not that of a label: %s", field, k, strings.Join(errs, "; "))
		}
		if errs := validation.IsValidLabelValue(v); len(errs) > 0 {
			return nil, invalid("%s: the value %.80q of %s is not that of a label: %s", field, v, k, strings.Join(errs, "; "))
		}
		if v != "" && !strings.HasPrefix(k, identity.DriverName+"/") {
			out[k] = v
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

// requisite are the requisite segments without the driver's own keys, which restrict nothing. They
// are only compared with those of pools, so they may be any strings. "If requisite is specified,
// then the provisioned volume MUST be accessible from at least one of the requisite topologies."
func requisite(r *csi.TopologyRequirement) (out []map[string]string) {
	for _, t := range r.GetRequisite() {
		segment := map[string]string{}
		for k, v := range t.GetSegments() {
			if !strings.HasPrefix(k, identity.DriverName+"/") {
				segment[k] = v
			}
		}
		out = append(out, segment)
	}
	return out
}
