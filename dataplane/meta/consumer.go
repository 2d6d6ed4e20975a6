package meta

import "slices"

// Near is the node of the pair that is nearer to a host than the other one, and by what: both are
// on one worker, in one zone or in one region. The zero value: neither is, or nothing is known.
type Near struct {
	Node string `json:"node"`
	By   string `json:"by"`
}

// What a node and a host have in common.
const (
	NearWorker = "worker"
	NearZone   = "zone"
	NearRegion = "region"
)

func (n Near) valid() bool {
	return n == Near{} || !badNode(n.Node) && slices.Contains([]string{NearWorker, NearZone, NearRegion}, n.By)
}

// Consumer is where the only host of a LUN is; the zero value if there is none, or several.
func (l *LUN) Consumer() (at Near) {
	if len(l.Maps) == 1 {
		for _, m := range l.Maps {
			at = m.Near
		}
	}
	return at
}

// followsConsumer reports whether the home of a LUN becomes the node that is nearer to the host
// that is being mapped. It does not where a person or a rule has said where the LUN belongs, and
// where nothing is to move.
func (s *State) followsConsumer(l *LUN, e *MapHost) bool {
	return e.Near.Node != "" && e.Near.Node != l.Preferred && len(l.Maps) == 0 && l.Pin == "" && l.Held(e.At) == nil &&
		(s.Policy == nil || s.Policy.Mode != "off")
}
