package objects

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// restriction is to the workers that have all labels of one term. The zero value is none.
type restriction struct {
	terms []v1alpha1.TopologyTerm
	by    string // what restricts, and in which field
}

// Limits of the terms of one volume: those of LogicalUnit.spec.accessibleFrom, and of the labels on
// the disks that they are kept in.
const (
	maxTerms  = 64
	maxLabels = 16
	// maxFlat bounds the work for one class; together with those of a pool its terms may be fewer.
	maxFlat = 4096
)

// flatten lists the terms of a StorageClass's allowedTopologies as the provisioner (v6.3.0,
// pkg/controller/topology.go) does: a term for each combination of the values of its labels. nil:
// it allows all workers.
func flatten(allowed []corev1.TopologySelectorTerm) ([]v1alpha1.TopologyTerm, error) {
	var out []v1alpha1.TopologyTerm
	for _, selector := range allowed {
		var terms []v1alpha1.TopologyTerm
		for i, e := range selector.MatchLabelExpressions {
			if i == 0 {
				terms = []v1alpha1.TopologyTerm{{}}
			}
			if len(out)+len(terms)*len(e.Values) > maxFlat {
				return nil, fmt.Errorf("%w: allowedTopologies has more than %d combinations of values: name fewer", backend.ErrInvalid, maxFlat)
			}
			var next []v1alpha1.TopologyTerm
			for _, t := range terms {
				for _, v := range e.Values {
					m := maps.Clone(t.MatchLabels)
					if m == nil {
						m = map[string]v1alpha1.TopologyValue{}
					}
					m[e.Key] = v1alpha1.TopologyValue(v)
					next = append(next, v1alpha1.TopologyTerm{MatchLabels: m})
				}
			}
			terms = next
		}
		out = append(out, terms...)
	}
	return out, nil
}

// combine is the restriction to the workers that both allow.
func combine(a, b restriction) (restriction, error) {
	switch {
	case len(a.terms) == 0:
		return b, nil
	case len(b.terms) == 0:
		return a, nil
	}
	out := restriction{by: a.by + " and " + b.by}
	for _, x := range a.terms {
		for _, y := range b.terms {
			m, ok := merge(x, y)
			if ok && !slices.ContainsFunc(out.terms, func(t v1alpha1.TopologyTerm) bool { return maps.Equal(t.MatchLabels, m.MatchLabels) }) {
				out.terms = append(out.terms, m)
			}
		}
	}
	if len(out.terms) == 0 {
		return restriction{}, fmt.Errorf("%w: %s have no workers in common: change one of them", backend.ErrUnreachable, out.by)
	}
	return out, nil
}

// merge is the term of the workers of both terms; false if no worker can be of both.
func merge(x, y v1alpha1.TopologyTerm) (v1alpha1.TopologyTerm, bool) {
	m := maps.Clone(x.MatchLabels)
	for k, v := range y.MatchLabels {
		if have, ok := m[k]; ok && have != v {
			return v1alpha1.TopologyTerm{}, false
		}
		m[k] = v
	}
	return v1alpha1.TopologyTerm{MatchLabels: m}, true
}

// check refuses more than a LogicalUnit holds.
func (r restriction) check() error {
	size := 0
	for _, t := range r.terms {
		if len(t.MatchLabels) > maxLabels {
			return fmt.Errorf("%w: %s: %d labels in one term: at most %d are possible: name fewer", backend.ErrInvalid, r.by, len(t.MatchLabels), maxLabels)
		}
		raw, err := json.Marshal(t.MatchLabels)
		if err != nil {
			return err
		}
		size += len(raw)
	}
	if len(r.terms) > maxTerms || size > v1alpha1.MaxDiskTerms {
		return fmt.Errorf("%w: %s: %d combinations of labels in %d bytes: at most %d in %d bytes are possible: name fewer, or one label that all these workers have",
			backend.ErrInvalid, r.by, len(r.terms), size, maxTerms, v1alpha1.MaxDiskTerms)
	}
	return nil
}

// fit of terms and requested segments.
type fit int

const (
	apart    fit = iota // no worker can be of both
	possible            // the segments lack labels that would tell
	certain             // every worker of one of the segments has all labels of a term
)

// fits compares the terms with segments. The provisioner knows only labels that one worker has
// reported, which for immediate binding is any worker: others may report more.
func (r restriction) fits(segments []map[string]string) (best fit) {
	for _, t := range r.terms {
		for _, s := range segments {
			best = max(best, fitOf(t, s))
		}
	}
	return best
}

func fitOf(t v1alpha1.TopologyTerm, segment map[string]string) fit {
	f := certain
	for k, v := range t.MatchLabels {
		switch have, ok := segment[k]; {
		case !ok:
			f = possible
		case have != string(v):
			return apart
		}
	}
	return f
}
