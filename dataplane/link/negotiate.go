package link

import (
	"fmt"
	"slices"
)

// Versions is a range of versions of the frame format, both ends included.
type Versions struct{ Min, Max int }

func (v Versions) String() string {
	if v.Min == v.Max {
		return fmt.Sprint(v.Min)
	}
	return fmt.Sprintf("%d to %d", v.Min, v.Max)
}

// Negotiated is what both ends of a link have in common. It stays as it is for the life of the
// link, so that during an upgrade a node of the new release uses with one of the old only what the
// old one knows, and the rest from the moment a link between two new ones comes up.
type Negotiated struct {
	Version  int      // the highest that both speak
	Features []string // that both have, sorted
}

// Has tells whether both ends have a feature.
func (n *Negotiated) Has(feature string) bool {
	_, ok := slices.BinarySearch(n.Features, feature)
	return ok
}

// Limits on the features of a hello. The hello as a whole is bounded by maxHello.
const (
	maxFeatures = 64
	maxFeature  = 48 // bytes of a name
	maxVersion  = 255
)

// versions is what the sender of a hello speaks. The first release sends no range.
func (h *Hello) versions() Versions {
	if h.Min == 0 && h.Max == 0 {
		return Versions{h.Version, h.Version}
	}
	return Versions{h.Min, h.Max}
}

// negotiate finds what this node and the sender of a hello have in common. Both ends come to the
// same result.
func negotiate(own Versions, features []string, h *Hello) (Negotiated, error) {
	peer := h.versions()
	if peer.Min < 1 || peer.Max < peer.Min || peer.Max > maxVersion {
		return Negotiated{}, fmt.Errorf("%w: the peer announces link versions %d to %d", ErrRefused, peer.Min, peer.Max)
	}
	if len(h.Features) > maxFeatures {
		return Negotiated{}, fmt.Errorf("%w: the peer has %d features, at most %d are allowed", ErrRefused, len(h.Features), maxFeatures)
	}
	n := Negotiated{Version: min(own.Max, peer.Max)}
	switch {
	case n.Version < own.Min:
		return Negotiated{}, fmt.Errorf("%w: the peer speaks link version %v, this node %v: upgrade the peer, by way of a release between the two", ErrRefused, peer, own)
	case n.Version < peer.Min:
		return Negotiated{}, fmt.Errorf("%w: the peer speaks link version %v, this node %v: upgrade this node, by way of a release between the two", ErrRefused, peer, own)
	}
	for _, f := range h.Features {
		if len(f) <= maxFeature && slices.Contains(features, f) && !slices.Contains(n.Features, f) {
			n.Features = append(n.Features, f)
		}
	}
	slices.Sort(n.Features)
	return n, nil
}

// chosen compares what the dialer came to with what the acceptor says it has chosen.
func (n *Negotiated) chosen(answer *Hello) error {
	if answer.Version != n.Version {
		return fmt.Errorf("%w: the peer chose link version %d, the highest common version is %d", ErrRefused, answer.Version, n.Version)
	}
	return nil
}

// agree checks that both connections of a session were negotiated alike: the peer may have been
// replaced by another release between them.
func (s *session) agree() error {
	d, b := &s.data.neg, &s.beat.neg
	if d.Version != b.Version || !slices.Equal(d.Features, b.Features) {
		return fmt.Errorf("%w: the two connections were negotiated differently: %+v and %+v", ErrRefused, *d, *b)
	}
	return nil
}
