package v1alpha1

import (
	"cmp"
	"slices"
)

// Placement is the location of a LUN.
type Placement struct {
	// Pair is the TargetPair.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pair string `json:"pair"`
	// Pool of the backing volumes, one on each node. Empty: the first one.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Pool string `json:"pool,omitempty"`
	// Home is the node of the pair, a or b, that is nearer to the consumer, or for a claim of a
	// ConsistencyGroup the node that keeps the group spread. It becomes the preferred node of the
	// LUN when it is created, unless spec.preferredNode names one. Empty: no node is nearer, and
	// the pair chooses.
	// +kubebuilder:validation:Enum="";a;b
	// +optional
	Home string `json:"home,omitempty"`
	// LegPairs are the pairs of the legs of a striped volume that is spread over several, in their
	// order; Pair is the first one. Empty: all legs are on Pair.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	LegPairs []LegPair `json:"legPairs,omitempty"`
	// UUID of the LUN on the disks; the WWID derives from it.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	UUID string `json:"uuid"`
}

// LegPair is the name of the TargetPair of a leg.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
type LegPair string

// On reports whether a LUN, or a leg of a striped volume, is on a pair.
func (p *Placement) On(pair string) bool {
	return p != nil && (p.Pair == pair || slices.Contains(p.LegPairs, LegPair(pair)))
}

// Pairs are the pairs of a LUN, or of the legs of a striped volume, each once; the first leg's is
// the first.
func (p *Placement) Pairs() []string {
	if p == nil {
		return nil
	}
	out := []string{p.Pair}
	for _, l := range p.LegPairs {
		if !slices.Contains(out, string(l)) {
			out = append(out, string(l))
		}
	}
	return out
}

// LegPairsOf says where the legs of a striped volume are, for its placement: pairs has the pair of
// each leg, in their order. Nil: all are on one pair.
func LegPairsOf(pairs []string) (out []LegPair) {
	for _, p := range pairs {
		out = append(out, LegPair(p))
	}
	if len(slices.Compact(slices.Clone(out))) < 2 {
		return nil
	}
	return out
}

// LegPairsFound is LegPairsOf for the legs that were found, by their numbers. The pair of one that
// is missing is not known, and not needed, because a leg is not made again: it gets the first one.
func LegPairsFound(legs int32, first string, found map[int32]string) []LegPair {
	on := make([]string, legs)
	for i := range legs {
		on[i] = cmp.Or(found[i], first)
	}
	return LegPairsOf(on)
}
