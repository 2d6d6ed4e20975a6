package controller

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/capability"
	"github.com/gemel-storage/gemel/internal/stripe"
)

// DefaultSize of a volume without a requested size, in bytes.
const DefaultSize = 1 << 30

// maxName is the general size limit of strings in the CSI specification, in bytes.
const maxName = 128

// checkName accepts what the specification allows: "Any Unicode string that conforms to the length
// limit is allowed except those containing the following banned characters: U+0000-U+0008, U+000B,
// U+000C, U+000E-U+001F, U+007F-U+009F."
func checkName(name string) error {
	switch {
	case name == "":
		return invalid("name is missing")
	case len(name) > maxName:
		return invalid("name has %d bytes: at most %d are allowed", len(name), maxName)
	case !utf8.ValidString(name):
		return invalid("name is not valid UTF-8")
	}
	for _, r := range name {
		if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r <= 0x9f {
			return invalid("name contains the control character %U", r)
		}
	}
	return nil
}

// roundUp rounds a size up to a multiple of a step.
func roundUp(n, step int64) (int64, error) {
	if n > math.MaxInt64-backend.SizeStep {
		return 0, status.Errorf(codes.OutOfRange, "capacity_range: %d bytes are more than a volume can have", n)
	}
	return (n + step - 1) / step * step, nil
}

// chooseSize returns the size of a new volume: at least the required size, the source's and the
// filesystem's minimum, in whole steps, and at most the limit.
func chooseSize(r *csi.CapacityRange, source int64, access []capability.Access, l stripe.Layout) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 {
		return 0, invalid("capacity_range: required_bytes %d and limit_bytes %d must not be negative", required, limit)
	}
	if limit > 0 && required > limit {
		return 0, invalid("capacity_range: required_bytes %d is above limit_bytes %d", required, limit)
	}
	size := required
	switch {
	case size == 0 && source > 0:
		size = source
	case size == 0:
		size = DefaultSize
		if limit > 0 && limit < size {
			size = max(limit/step(l)*step(l), step(l))
		}
	}
	// "Volume MUST be at least this big": a larger one is what was asked for, unless a limit says
	// otherwise. Claims of a byte exist, such as those of Kubernetes' own tests of StatefulSets.
	if access[0].FSType == "xfs" {
		size = max(size, capability.MinXFS)
	}
	size, err := roundUp(max(size, source), step(l))
	if err != nil {
		return 0, err
	}
	if limit > 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange, "capacity_range: limit_bytes %d is below the minimum %d (steps of %d bytes, source %d bytes, XFS %d bytes)",
			limit, size, step(l), source, capability.MinXFS)
	}
	return size, nil
}

// fits reports whether the size of an existing volume satisfies a repeated create.
func fits(size int64, r *csi.CapacityRange) bool {
	return size >= r.GetRequiredBytes() && (r.GetLimitBytes() == 0 || size <= r.GetLimitBytes())
}

// Parameters of a StorageClass.
const (
	paramPreferredNode = v1alpha1.ParamPreferred
	paramPinnedNode    = v1alpha1.ParamPinned
	paramWriteCache    = v1alpha1.ParamWriteCache
	paramTier          = v1alpha1.ParamTier
	paramCluster       = v1alpha1.ParamCluster // only if the backend needs it
	paramPool          = v1alpha1.ParamPool
	paramSessions      = v1alpha1.ParamSessions
	reservedPrefix     = "csi.storage.k8s.io/" // added by the Kubernetes sidecars
	paramFSType        = v1alpha1.ParamFSType
)

// keptParameters are the reserved parameters that name the volume's claim; they become labels.
var keptParameters = []string{v1alpha1.DiskLabelPV, v1alpha1.DiskLabelPVC, v1alpha1.DiskLabelNamespace}

var poolName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// parameters of a StorageClass, parsed.
type parameters struct {
	cluster  string
	pool     string
	layout   stripe.Layout
	sessions int  // of a worker to each portal; 0: as the worker says
	pairs    bool // the LUNs of a striped volume are spread over pairs
	mutable  mutable
	labels   map[string]string
}

// parseParameters parses the parameters of a StorageClass; an error names the supported ones.
// clusters: the backend has StorageClusters; whether the parameter is required depends on the call.
func parseParameters(m map[string]string, clusters bool) (p parameters, err error) {
	known := []string{paramPool, paramPreferredNode, paramPinnedNode, paramWriteCache, paramTier, reservedPrefix + "*"}
	if clusters {
		known = append([]string{paramCluster, paramLUNs, paramIOPS, paramStripe, paramSpread, paramSessions}, known...)
	}
	var s striping
	p.labels = map[string]string{}
	for k, v := range m {
		switch {
		case k == paramCluster && clusters:
			p.cluster = v
		case k == paramLUNs && clusters:
			s.luns = v
		case k == paramIOPS && clusters:
			s.iops = v
		case k == paramStripe && clusters:
			s.stripe = v
		case k == paramSpread && clusters:
			s.spread = v
		case k == paramSessions && clusters:
			if p.sessions, err = parseSessions(v); err != nil {
				return p, err
			}
		case k == paramPool:
			if v != "" && !poolName.MatchString(v) {
				return p, invalid("parameters: %s is %q: the name of a pool has at most 32 characters of a-z, 0-9 and -", k, v)
			}
			p.pool = v
		case slices.Contains(mutableParameters, k):
			if err := p.mutable.set("parameters", k, v); err != nil {
				return p, err
			}
		case k == paramFSType:
			if v != "" && !slices.Contains(capability.Filesystems, v) {
				return p, invalid("parameters: %s is %q: use one of %s", k, v, strings.Join(capability.Filesystems, ", "))
			}
		case slices.Contains(keptParameters, k):
			p.labels[k] = v
		case strings.HasPrefix(k, reservedPrefix):
		default:
			return p, invalid("parameters: %q is unknown: supported parameters are %s", k, strings.Join(known, ", "))
		}
	}
	if p.layout, err = s.layout(); err != nil {
		return p, err
	}
	if p.pairs, err = s.overPairs(p.layout); err != nil {
		return p, err
	}
	return p, p.mutable.consistent("parameters")
}

// parseSessions reads how many sessions a worker makes to each portal.
func parseSessions(v string) (int, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > v1alpha1.MaxSessions {
		return 0, invalid("parameters: %s is %q: use a number from 1 to %d", paramSessions, v, v1alpha1.MaxSessions)
	}
	return n, nil
}

// accessLabels are the labels of a volume's capabilities, for later calls.
func accessLabels(access []capability.Access) (fstype, mode string) {
	fstype, mode = access[0].FSType, v1alpha1.AccessSingle
	if access[0].Block {
		fstype = v1alpha1.FSTypeBlock
	}
	for _, a := range access {
		if a.MultiNode() {
			mode = v1alpha1.AccessMulti
		}
	}
	return fstype, mode
}

// compatible checks whether a volume supports this access according to its labels. A volume without
// labels was not created by CSI and supports any.
func compatible(v backend.Volume, a capability.Access) error {
	fs, multi := v.Labels[v1alpha1.DiskLabelFSType], v.Labels[v1alpha1.DiskLabelAccess]
	switch {
	case fs != "" && (fs == v1alpha1.FSTypeBlock) != a.Block:
		return invalid("volume %s was created as %s, which does not support this access type", v.ID, fs)
	case fs != "" && !a.Block && fs != a.FSType:
		return invalid("volume %s was created for %s, not for %s", v.ID, fs, a.FSType)
	case multi == v1alpha1.AccessSingle && a.MultiNode():
		return invalid("volume %s was created for one node at a time, not for %s", v.ID, a.Mode)
	}
	return nil
}
