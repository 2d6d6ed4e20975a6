package cluster

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// couple is the failure domains of a pair's nodes a and b. The zero value is any two.
type couple [2]string

// is reports whether two couples are the same domains, in either order.
func (x couple) is(y couple) bool { return x == y || x == couple{y[1], y[0]} }

func (x couple) String() string { return x[0] + " and " + x[1] }

func coupleOf(d *v1alpha1.Domains) couple { return couple{d.Between[0], d.Between[1]} }

// newPair is a pair to create.
type newPair struct {
	number int
	couple couple
}

// layout is how the pairs of a cluster are laid over spec.domains.
type layout struct {
	next   []newPair // pairs to create, by number
	lack   []int     // pairs that each couple of the spec lacks now
	never  []int     // pairs that it lacks when next exists
	others []string  // existing pairs that no couple of the spec counts, each with where it is
}

// lay decides which couple each missing pair gets: the first one of the spec that lacks pairs, and
// none when all have theirs. Existing pairs keep theirs. A pair without one counts for the couple
// that its workers are in, as long as that couple lacks pairs: it may be older than spec.domains.
func lay(s *v1alpha1.StorageClusterSpec, pairs []v1alpha1.TargetPair, nodes []corev1.Node) (l layout) {
	for i := range s.Domains {
		l.lack = append(l.lack, int(s.Domains[i].Pairs))
	}
	counts := func(at couple) bool {
		i := slices.IndexFunc(s.Domains, func(d v1alpha1.Domains) bool { return coupleOf(&d).is(at) })
		if i < 0 || l.lack[i] == 0 {
			return false
		}
		l.lack[i]--
		return true
	}
	there := map[int]bool{}
	var unlaid []*v1alpha1.TargetPair
	for i := range pairs {
		p, n := &pairs[i], pairNumber(&pairs[i])
		if n >= int(s.Pairs) {
			continue // it is removed as soon as it has no LUN
		}
		there[n] = true
		if at := laidIn(p); at == (couple{}) {
			unlaid = append(unlaid, p)
		} else if !counts(at) {
			l.others = append(l.others, fmt.Sprintf("%s (%s)", p.Name, at))
		}
	}
	for _, p := range unlaid {
		switch at := foundIn(s, p, nodes); {
		case at == (couple{}):
			l.others = append(l.others, p.Name+" (anywhere)")
		case !counts(at):
			l.others = append(l.others, fmt.Sprintf("%s (%s)", p.Name, at))
		}
	}
	l.never = slices.Clone(l.lack)
	for n := range int(s.Pairs) {
		if there[n] {
			continue
		}
		x := newPair{number: n}
		if i := slices.IndexFunc(l.never, func(n int) bool { return n > 0 }); i >= 0 {
			x.couple = coupleOf(&s.Domains[i])
			l.never[i]--
		}
		l.next = append(l.next, x)
	}
	return l
}

// laidIn is the couple that a pair was created for, the zero value if for none.
func laidIn(p *v1alpha1.TargetPair) (x couple) {
	for _, n := range p.Spec.Nodes {
		if n.Domain == "" {
			return couple{}
		}
		x[place(n.Name)] = n.Domain
	}
	return x
}

// foundIn is the couple that the workers of a pair are in, the zero value while one is unknown.
func foundIn(s *v1alpha1.StorageClusterSpec, p *v1alpha1.TargetPair, nodes []corev1.Node) (x couple) {
	for _, n := range p.Spec.Nodes {
		i := slices.IndexFunc(nodes, func(w corev1.Node) bool { return w.Name == n.Worker })
		if i < 0 || nodes[i].Labels[s.FailureDomainKey] == "" {
			return couple{}
		}
		x[place(n.Name)] = nodes[i].Labels[s.FailureDomainKey]
	}
	return x
}

func place(node string) int {
	if node == "a" {
		return 0
	}
	return 1
}

// condition DomainsMatch of a cluster with spec.domains.
func (l *layout) condition(s *v1alpha1.StorageClusterSpec) metav1.Condition {
	x := metav1.Condition{Type: v1alpha1.ConditionDomainsMatch, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "every couple of spec.domains has its pairs"}
	list := func(lack []int) (text string, sum int) {
		var parts []string
		for i, n := range lack {
			if n > 0 {
				parts = append(parts, fmt.Sprintf("%s lack %d of %d pairs", coupleOf(&s.Domains[i]), n, s.Domains[i].Pairs))
				sum += n
			}
		}
		return strings.Join(parts, "; "), sum
	}
	if text, sum := list(l.never); sum > 0 {
		x.Status, x.Reason = metav1.ConditionFalse, v1alpha1.ReasonInvalid
		x.Message = fmt.Sprintf("spec.domains: %s, and spec.pairs leaves no room for more: %s exist elsewhere and stay there with their data. "+
			"Increase spec.pairs by %d, or change spec.domains to what exists (status.domains)", text, strings.Join(l.others, ", "), sum)
	} else if text, sum := list(l.lack); sum > 0 {
		x.Status, x.Reason, x.Message = metav1.ConditionFalse, v1alpha1.ReasonProgressing, fmt.Sprintf("spec.domains: %s; %d pairs are to be created", text, len(l.next))
	}
	return x
}

// domainsStatus counts the pairs of each couple: those of the spec in its order, then others.
func domainsStatus(s *v1alpha1.StorageClusterSpec, pairs []v1alpha1.TargetPair, nodes []corev1.Node) (out []v1alpha1.DomainsStatus) {
	if len(s.Domains) == 0 {
		return nil
	}
	for i := range s.Domains {
		out = append(out, v1alpha1.DomainsStatus{Between: s.Domains[i].Between})
	}
	for i := range pairs {
		at := laidIn(&pairs[i])
		if at == (couple{}) {
			at = foundIn(s, &pairs[i], nodes)
		}
		if at == (couple{}) {
			continue
		}
		k := slices.IndexFunc(out, func(d v1alpha1.DomainsStatus) bool { return couple{d.Between[0], d.Between[1]}.is(at) })
		if k < 0 {
			if len(out) == maxDomainsStatus {
				continue
			}
			k, out = len(out), append(out, v1alpha1.DomainsStatus{Between: at[:]})
		}
		out[k].Pairs++
		if inSync(&pairs[i]) {
			out[k].ReadyPairs++
		}
	}
	return out
}

// maxDomainsStatus limits the couples in a status: 32 of the spec, and one of each of 64 pairs.
const maxDomainsStatus = 96
