package controller

import (
	"strconv"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/capability"
	"github.com/gemel-storage/gemel/internal/stripe"
)

// Parameters of a StorageClass for striped volumes.
const (
	paramLUNs   = v1alpha1.ParamLUNs
	paramIOPS   = v1alpha1.ParamIOPS
	paramStripe = v1alpha1.ParamStripe
	paramSpread = v1alpha1.ParamSpread
)

// maxIOPS are those of a volume with the most LUNs.
const maxIOPS = stripe.MaxCount * stripe.IOPSPerLUN

var stripeSizes = map[string]int64{"64Ki": 64 << 10, "128Ki": 128 << 10, "256Ki": 256 << 10, "512Ki": 512 << 10, "1Mi": 1 << 20}

// striping is what a StorageClass says of stripes, as text; empty where it says nothing.
type striping struct{ luns, iops, stripe, spread string }

// count of LUNs, and the parameter that says it.
func (s striping) count() (n int, param string, err error) {
	switch {
	case s.iops != "" && s.luns != "":
		return 0, "", invalid("parameters: %s is %q and %s is %q: leave one of them out, since each says how many LUNs a volume has", paramIOPS, s.iops, paramLUNs, s.luns)
	case s.iops != "":
		if n, err = strconv.Atoi(s.iops); err != nil || n < 1 || n > maxIOPS {
			return 0, "", invalid("parameters: %s is %q: use a number from 1 to %d; a volume has one LUN for each %d", paramIOPS, s.iops, maxIOPS, stripe.IOPSPerLUN)
		}
		return stripe.ForIOPS(n), paramIOPS, nil
	case s.luns != "":
		if n, err = strconv.Atoi(s.luns); err != nil || n < 1 || n > stripe.MaxCount {
			return 0, "", invalid("parameters: %s is %q: use a number from 1 to %d", paramLUNs, s.luns, stripe.MaxCount)
		}
		return n, paramLUNs, nil
	}
	return 1, paramLUNs, nil
}

// layout of the volumes of a class; Count 0: one LUN.
func (s striping) layout() (l stripe.Layout, err error) {
	count, param, err := s.count()
	if err != nil {
		return l, err
	}
	if count == 1 {
		if s.stripe != "" && param == paramIOPS {
			return l, invalid("parameters: %s is for volumes with several LUNs: set %s to more than %d, or leave %s out", paramStripe, paramIOPS, stripe.IOPSPerLUN, paramStripe)
		}
		if s.stripe != "" {
			return l, invalid("parameters: %s is for volumes with several LUNs: set %s to 2 or more, or leave %s out", paramStripe, paramLUNs, paramStripe)
		}
		return l, nil
	}
	l = stripe.Default(count)
	if s.stripe == "" {
		return l, nil
	}
	size, ok := stripeSizes[s.stripe]
	if !ok {
		return l, invalid("parameters: %s is %q: use 64Ki, 128Ki, 256Ki, 512Ki or 1Mi", paramStripe, s.stripe)
	}
	l.Size = size
	return l, nil
}

// overPairs reports whether the LUNs of a volume are spread over pairs.
func (s striping) overPairs(l stripe.Layout) (bool, error) {
	switch {
	case s.spread != "" && s.spread != v1alpha1.OverNodes && s.spread != v1alpha1.OverPairs:
		return false, invalid("parameters: %s is %q: use %s or %s", paramSpread, s.spread, v1alpha1.OverNodes, v1alpha1.OverPairs)
	case s.spread != "" && l.Count == 0:
		return false, invalid("parameters: %s is for volumes with several LUNs: set %s to 2 or more, or %s to more than %d, or leave %s out", paramSpread, paramLUNs, paramIOPS, stripe.IOPSPerLUN, paramSpread)
	}
	return s.spread == v1alpha1.OverPairs, nil
}

// stripable refuses what a striped volume cannot be used for.
func stripable(want *backend.CreateVolume, access []capability.Access) error {
	if want.Layout.Count == 0 {
		return nil
	}
	for _, a := range access {
		if a.MultiNode() {
			return invalid("parameters: %s or %s: the volume would have %d LUNs: a striped volume is for one worker at a time, and %s is not: a persistent reservation reaches one of its LUNs only", paramLUNs, paramIOPS, want.Layout.Count, a.Mode)
		}
	}
	switch {
	case want.PreferredNode != "":
		return invalid("parameters: %s: the LUNs of a striped volume are spread over both nodes: leave %s or %s and %s out", paramPreferredNode, paramPreferredNode, paramLUNs, paramIOPS)
	case want.PinnedNode != "" && want.PinnedNode != v1alpha1.NoPin:
		return invalid("parameters: %s: the LUNs of a striped volume are spread over both nodes: leave %s or %s and %s out", paramPinnedNode, paramPinnedNode, paramLUNs, paramIOPS)
	}
	return nil
}

// step is the unit of the sizes of a volume: each of its LUNs has a size in backend.SizeStep.
func step(l stripe.Layout) int64 { return backend.SizeStep * int64(max(l.Count, 1)) }
