package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// domains is "a-b:2 b-c:1".
func domains(t *testing.T, text string) (out []v1alpha1.Domains) {
	t.Helper()
	for _, x := range strings.Fields(text) {
		var a, b string
		var n int32
		if _, err := fmt.Sscanf(strings.NewReplacer("-", " ", ":", " ").Replace(x), "%s %s %d", &a, &b, &n); err != nil {
			t.Fatalf("%q: %v", x, err)
		}
		out = append(out, v1alpha1.Domains{Between: []string{a, b}, Pairs: n})
	}
	return out
}

// pairsAt is "0:a-b 1@w1-w3 2": pair 0 was laid in a and b, pair 1 runs on workers w1 and w3, pair
// 2 is nowhere yet.
func pairsAt(t *testing.T, text string) (out []v1alpha1.TargetPair) {
	t.Helper()
	for _, x := range strings.Fields(text) {
		p := v1alpha1.TargetPair{Spec: v1alpha1.TargetPairSpec{Cluster: "c", Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
		n := &p.Spec.Nodes
		number, at, ok := strings.Cut(x, ":")
		if ok {
			(*n)[0].Domain, (*n)[1].Domain, _ = strings.Cut(at, "-")
		} else if number, at, ok = strings.Cut(x, "@"); ok {
			(*n)[0].Worker, (*n)[1].Worker, _ = strings.Cut(at, "-")
		}
		p.Name = "c-p" + number
		out = append(out, p)
	}
	return out
}

func TestLaysPairsOverDomains(t *testing.T) {
	nodes := []corev1.Node{worker("w1", "zone=a"), worker("w2", "zone=b"), worker("w3", "zone=c"), worker("w4")}
	for _, x := range []struct {
		name, domains string
		pairs         int32
		have          string
		next          string // "NUMBER COUPLE" of each new pair
		lack          string // pairs that couples lack for good
		others        string
	}{
		{"without domains", "", 2, "", "0 any, 1 any", "", ""},
		{"in the order of the list", "a-b:2 b-c:1", 3, "", "0 a-b, 1 a-b, 2 b-c", "", ""},
		{"the rest goes anywhere", "a-b:1", 3, "", "0 a-b, 1 any, 2 any", "", ""},
		{"what exists counts", "a-b:2 b-c:1", 3, "1:a-b", "0 a-b, 2 b-c", "", ""},
		{"in either order", "a-b:1 b-c:1", 2, "0:c-b", "1 a-b", "", ""},
		{"nothing to do", "a-b:1 b-c:1", 2, "0:b-c 1:a-b", "", "", ""},
		{"a gap", "a-b:1 b-c:1 a-c:1", 3, "0:a-b 2:a-c", "1 b-c", "", ""},
		{"more pairs", "a-b:1 a-c:2", 3, "0:a-b 1:a-c", "2 a-c", "", ""},
		{"older pairs count where they run", "a-b:1 b-c:1", 2, "0@w3-w2", "1 a-b", "", ""},
		{"an older pair in no couple", "a-b:1", 2, "0@w3-w2", "1 a-b", "", "c-p0 (c and b)"},
		{"an older pair on a worker without the label", "a-b:1", 2, "0@w1-w4", "1 a-b", "", "c-p0 (anywhere)"},
		{"laid ones count before older ones", "a-b:1 b-c:1", 2, "0@w1-w2 1:a-b", "", "b-c:1", "c-p0 (a and b)"},
		{"a list that has changed", "b-c:2", 2, "0:a-b 1:b-c", "", "b-c:1", "c-p0 (a and b)"},
		{"a list that has changed, with room", "b-c:2", 3, "0:a-b 1:b-c", "2 b-c", "", "c-p0 (a and b)"},
		{"a couple taken off the list, whose pairs are the rest", "a-b:1", 2, "0:a-b 1:b-c", "", "", "c-p1 (b and c)"},
		{"surplus pairs do not count", "a-b:1 b-c:1", 2, "0:a-b 2:b-c", "1 b-c", "", ""},
		{"half a couple is none", "a-b:1", 1, "0:a-", "", "a-b:1", "c-p0 (anywhere)"},
	} {
		s := &v1alpha1.StorageClusterSpec{Pairs: x.pairs, FailureDomainKey: "zone", Domains: domains(t, x.domains)}
		l := lay(s, pairsAt(t, x.have), nodes)
		var next, lack []string
		for _, n := range l.next {
			at := "any"
			if n.couple != (couple{}) {
				at = n.couple[0] + "-" + n.couple[1]
			}
			next = append(next, fmt.Sprintf("%d %s", n.number, at))
		}
		for i, n := range l.never {
			if n > 0 {
				lack = append(lack, fmt.Sprintf("%s-%s:%d", s.Domains[i].Between[0], s.Domains[i].Between[1], n))
			}
		}
		if got := strings.Join(next, ", "); got != x.next {
			t.Errorf("%s: new pairs %q, not %q", x.name, got, x.next)
		}
		if got := strings.Join(lack, " "); got != x.lack {
			t.Errorf("%s: lacking %q, not %q", x.name, got, x.lack)
		}
		if got := strings.Join(l.others, ", "); len(s.Domains) > 0 && got != x.others {
			t.Errorf("%s: others %q, not %q", x.name, got, x.others)
		}
		c := l.condition(s)
		if want := x.lack == "" && (x.next == "" || x.domains == ""); len(s.Domains) > 0 && want != (c.Status == metav1.ConditionTrue) && !strings.Contains(x.next, "any") {
			t.Errorf("%s: %+v", x.name, c)
		}
	}
}

// Pairs get their couples when they are created, and keep them when the list changes: the condition
// then says what to do. More pairs make it true again.
func TestPairsKeepTheirDomains(t *testing.T) {
	w := newWorld(t, "laid", 3)
	for _, z := range []string{"a", "b", "c"} {
		n := worker("laid-"+z, "laid="+z)
		w.ok(w.c.Create(w.ctx, &n))
	}
	set := func(pairs int32, text string) {
		t.Helper()
		c := w.get()
		c.Spec.FailureDomainKey, c.Spec.Pairs, c.Spec.Domains = "laid", pairs, domains(t, text)
		w.ok(w.c.Update(w.ctx, c))
	}
	at := func() (text string) {
		l := &v1alpha1.TargetPairList{}
		w.ok(w.c.List(w.ctx, l))
		for _, p := range l.Items {
			if p.Spec.Cluster == w.name {
				text += fmt.Sprintf("%s:%s-%s ", strings.TrimPrefix(p.Name, "laid-"), p.Spec.Nodes[0].Domain, p.Spec.Nodes[1].Domain)
			}
		}
		return text
	}
	check := func(pairs, status string, want metav1.ConditionStatus, says ...string) {
		t.Helper()
		for range 2 {
			w.step()
		}
		if got := at(); got != pairs {
			t.Errorf("pairs %q, not %q", got, pairs)
		}
		got := ""
		for _, d := range w.get().Status.Domains {
			got += fmt.Sprintf("%s-%s:%d/%d ", d.Between[0], d.Between[1], d.ReadyPairs, d.Pairs)
		}
		if got != status {
			t.Errorf("status %q, not %q", got, status)
		}
		c := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionDomainsMatch)
		if c == nil || c.Status != want {
			t.Fatalf("%+v", c)
		}
		for _, s := range says {
			if !strings.Contains(c.Message, s) {
				t.Errorf("%q lacks %q", c.Message, s)
			}
		}
	}
	set(3, "a-b:2 b-c:1")
	check("p0:a-b p1:a-b p2:b-c ", "a-b:0/2 b-c:0/1 ", metav1.ConditionTrue)
	w.pair(0, 1, true)
	w.pair(1, 0, false)
	set(3, "a-b:1 c-a:1 b-c:1")
	check("p0:a-b p1:a-b p2:b-c ", "a-b:1/2 c-a:0/0 b-c:0/1 ", metav1.ConditionFalse,
		"spec.domains: c and a lack 1 of 1 pairs", "laid-p1 (a and b) exist elsewhere", "Increase spec.pairs by 1")
	set(4, "a-b:1 c-a:1 b-c:1")
	check("p0:a-b p1:a-b p2:b-c p3:c-a ", "a-b:1/2 c-a:0/1 b-c:0/1 ", metav1.ConditionTrue)

	// A couple without workers is not created, and holds up no other one.
	set(6, "a-b:1 c-d:1 b-c:2")
	check("p0:a-b p1:a-b p2:b-c p3:c-a p5:b-c ", "a-b:1/2 c-d:0/0 b-c:0/2 c-a:0/1 ", metav1.ConditionFalse, "c and d lack 1 of 1 pairs; 1 pairs are to be created")
	w.pair(2, 0, true)
	w.pair(3, 0, true)
	w.pair(5, 0, true)
	w.step()
	if c := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionReady); c.Reason != v1alpha1.ReasonTooFewNodes || !strings.Contains(c.Message, `the value "d"`) {
		t.Errorf("%+v", c)
	}
	d := worker("laid-d", "laid=d")
	w.ok(w.c.Create(w.ctx, &d))
	check("p0:a-b p1:a-b p2:b-c p3:c-a p4:c-d p5:b-c ", "a-b:1/2 c-d:0/1 b-c:2/2 c-a:1/1 ", metav1.ConditionTrue)

	// Without the list there is nothing to say.
	set(6, "")
	w.step()
	if s := w.get().Status; len(s.Domains) > 0 || meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDomainsMatch) != nil {
		t.Errorf("%+v", s)
	}
}

// A reconcile with an old cache does not decide about the pairs that it does not know.
func TestAnOldCacheLaysNoPair(t *testing.T) {
	w := newWorld(t, "oldcache", 2)
	for _, z := range []string{"a", "b", "c"} {
		n := worker("oldcache-"+z, "oldcache="+z)
		w.ok(w.c.Create(w.ctx, &n))
	}
	c := w.get()
	c.Spec.FailureDomainKey, c.Spec.Domains = "oldcache", domains(t, "a-b:1 b-c:1")
	w.ok(w.c.Update(w.ctx, c))
	first := pairsAt(t, "0:b-c")[0]
	first.Name, first.Spec.Cluster = v1alpha1.PairName(w.name, 0), w.name
	w.ok(w.c.Create(w.ctx, &first))
	l := lay(&c.Spec, nil, nil) // as if it had not seen the pair
	w.ok(w.r.createPairs(w.ctx, c, l.next))
	w.step()
	p := &v1alpha1.TargetPair{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: v1alpha1.PairName(w.name, 1)}, p))
	if got := laidIn(p); got != (couple{"a", "b"}) {
		t.Errorf("pair 1 is laid in %v", got)
	}
}
