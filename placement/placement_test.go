package placement

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const gib = 1 << 30

func pair(name string, change ...func(*Pair)) Pair {
	p := Pair{Name: name, Cluster: "c", Ready: true, InSync: true, Pools: []Pool{{Name: "default", Capacity: 10 * gib, Free: 5 * gib}}}
	for _, f := range change {
		f(&p)
	}
	return p
}

func free(n int64) func(*Pair) { return func(p *Pair) { p.Pools[0].Free = n } }
func fast(n int64) func(*Pair) {
	return func(p *Pair) { p.Pools = append(p.Pools, Pool{Name: "fast", Capacity: 10 * gib, Free: n}) }
}
func inFast(req Request) Request    { req.Pool = "fast"; return req }
func promised(n int64) func(*Pair)  { return func(p *Pair) { p.Pools[0].Promised = n } }
func luns(n int) func(*Pair)        { return func(p *Pair) { p.LUNs = n } }
func cluster(s string) func(*Pair)  { return func(p *Pair) { p.Cluster = s } }
func down(p *Pair)                  { p.Ready, p.InSync = false, false }
func alone(p *Pair)                 { p.InSync = false }
func ask(n int64) Request           { return Request{Cluster: "c", Size: n} }
func copyOf(pair string) Request    { return Request{Cluster: "c", Size: gib, SourcePair: pair} }
func says(parts ...string) []string { return parts }

func TestChooseOneOfThePairs(t *testing.T) {
	for name, c := range map[string]struct {
		pairs []Pair
		req   Request
		want  string
		err   error
		says  []string
	}{
		"by name":           {[]Pair{pair("q"), pair("p")}, ask(gib), "p", nil, nil},
		"most free":         {[]Pair{pair("p"), pair("q", free(6*gib))}, ask(gib), "q", nil, nil},
		"least promised":    {[]Pair{pair("p", promised(9*gib)), pair("q", promised(8*gib))}, ask(gib), "q", nil, nil},
		"free counts too":   {[]Pair{pair("p", promised(6*gib), free(gib)), pair("q", promised(8*gib))}, ask(gib), "q", nil, nil},
		"over the capacity": {[]Pair{pair("p", promised(30*gib)), pair("q", promised(29*gib))}, ask(gib), "q", nil, nil},
		"fewest LUNs":       {[]Pair{pair("p", luns(2)), pair("q", luns(1))}, ask(gib), "q", nil, nil},
		"in sync first":     {[]Pair{pair("p", alone, free(9*gib)), pair("q")}, ask(gib), "q", nil, nil},
		"alone, if it must": {[]Pair{pair("p", alone), pair("q", free(gib-1))}, ask(gib), "p", nil, nil},
		"exactly":           {[]Pair{pair("p", free(gib))}, ask(gib), "p", nil, nil},
		"other cluster":     {[]Pair{pair("p", cluster("d"))}, ask(gib), "", ErrNoPair, says("cluster c")},
		"no pair":           {nil, ask(gib), "", ErrNoPair, nil},
		"down":              {[]Pair{pair("p", down)}, ask(gib), "", ErrNotReady, says("p: ")},
		"full":              {[]Pair{pair("p", free(1)), pair("q", free(2))}, ask(gib), "", ErrNoRoom, says("p: 1 bytes", "q: 2 bytes", "1073741824")},
		"full or down":      {[]Pair{pair("p", free(1)), pair("q", down)}, ask(gib), "", ErrNotReady, says("p: 1 bytes", "q: ")},
		"limit of LUNs":     {[]Pair{pair("p", luns(MaxLUNs))}, ask(gib), "", ErrNoRoom, says("16384")},
		"copy":              {[]Pair{pair("p", free(1)), pair("q")}, copyOf("p"), "p", nil, nil},
		"copy, pair down":   {[]Pair{pair("p", down), pair("q")}, copyOf("p"), "", ErrNotReady, says("p: ")},
		"pool":              {[]Pair{pair("p", fast(gib)), pair("q", free(9*gib), fast(2*gib))}, inFast(ask(gib)), "q", nil, nil},
		"pool of one":       {[]Pair{pair("p", fast(gib)), pair("q", free(9*gib))}, inFast(ask(gib)), "p", nil, nil},
		"pool full":         {[]Pair{pair("p", fast(7))}, inFast(ask(gib)), "", ErrNoRoom, says("p: 7 bytes are free in pool fast")},
		"pool to come":      {[]Pair{pair("p"), pair("q", fast(7))}, inFast(ask(gib)), "", ErrNotReady, says("p: ", "of pool fast yet", "q: 7 bytes")},
		"first, by name":    {[]Pair{pair("p", fast(9*gib))}, Request{Cluster: "c", Size: gib, Pool: "default"}, "p", nil, nil},
		"copy in a pool":    {[]Pair{pair("p", fast(1)), pair("q", fast(9*gib))}, inFast(copyOf("p")), "p", nil, nil},
		"copy, elsewhere":   {[]Pair{pair("p", cluster("d")), pair("q")}, copyOf("p"), "", ErrNoPair, says("source is on p")},
	} {
		got, err := Choose(c.pairs, c.req)
		if got.Pair != c.want || got.Home != "" || (got.Reason == "") != (err != nil) || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for _, s := range c.says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v does not say %q", name, err, s)
			}
		}
	}
}

func random(r *rand.Rand) (out []Pair) {
	for i := range r.IntN(6) {
		out = append(out, Pair{Name: string(rune('p' + i)), Cluster: string(rune('c' + r.IntN(2))), Ready: r.IntN(4) > 0, InSync: r.IntN(3) > 0,
			Pools: []Pool{{Name: "default", Capacity: 0, Free: int64(r.IntN(5)) * gib}}, LUNs: r.IntN(3)})
	}
	return out
}

// Whatever the pairs are: a choice can take the LUN, no better one was passed over, the order in
// which they are given does not matter, and what Largest promises is what Choose takes.
func TestChoosePropertiesForRandomPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for range 20000 {
		pairs, req := random(r), Request{Cluster: "c", Size: int64(1+r.IntN(5)) * gib}
		if r.IntN(4) == 0 {
			req.SourcePair = "q"
		}
		got, err := Choose(pairs, req)
		mixed := slices.Clone(pairs)
		r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		if again, err2 := Choose(mixed, req); again != got || (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
			t.Fatalf("%v: %+v, %v, in another order %+v, %v", pairs, got, err, again, err2)
		}
		if (got.Pair == "") != (err != nil) {
			t.Fatalf("%v: %+v, %v", pairs, got, err)
		}
		if err == nil {
			taken++
			k := slices.IndexFunc(pairs, func(p Pair) bool { return p.Name == got.Pair })
			p := pairs[k]
			if !p.Ready || p.Cluster != "c" || req.SourcePair == "" && p.free("") < req.Size || req.SourcePair != "" && req.SourcePair != got.Pair {
				t.Fatalf("%v cannot take %+v", p, req)
			}
			for _, o := range pairs {
				if req.SourcePair == "" && o.Ready && o.Cluster == "c" && o.free("") >= req.Size && (o.InSync && !p.InSync || o.InSync == p.InSync && o.free("") > p.free("")) {
					t.Fatalf("%v was passed over for %v", o, p)
				}
			}
		}
		if req.SourcePair == "" {
			if (req.Size <= Largest(pairs, "c", "")) != (err == nil) {
				t.Fatalf("%v: largest %d, asked %d: %v", pairs, Largest(pairs, "c", ""), req.Size, err)
			}
			if Largest(pairs, "", "") != max(Largest(pairs, "c", ""), Largest(pairs, "d", "")) {
				t.Fatal(pairs)
			}
		}
	}
	if taken < 5000 {
		t.Errorf("only %d of the requests had a place", taken)
	}
}

func TestFromObject(t *testing.T) {
	q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
	o := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.TargetPairSpec{Cluster: "c"}, Status: v1alpha1.TargetPairStatus{
		Capacity: q("10Gi"), Free: q("5Gi"), LogicalUnits: 3, Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionInSync, Status: metav1.ConditionFalse}}}}
	if got := FromObject(o, 1); got.Pool("") == nil || got.Pool("").Free != 5*gib || got.Pool("fast") != nil || got.LUNs != 3 || got.InSync || !got.Ready {
		t.Errorf("of an earlier release: %+v", got)
	}
	o.Status.Capacity, o.Status.Free = q("30Gi"), q("7Gi")
	o.Status.Pools = []v1alpha1.PoolStatus{{Name: "default", Capacity: q("10Gi"), Free: q("5Gi")}, {Name: "fast", Capacity: q("10Gi"), Free: q("2Gi")}}
	if got := FromObject(o, 1); !reflect.DeepEqual(got, pair("p", alone, luns(3), fast(2*gib))) {
		t.Errorf("%+v", got)
	}
	now := metav1.Now()
	o.DeletionTimestamp, o.Status.Conditions[1].Status = &now, metav1.ConditionTrue
	if got := FromObject(o, 7); got.Ready || !got.InSync || got.LUNs != 7 {
		t.Errorf("%+v", got)
	}
	if got := FromObject(&v1alpha1.TargetPair{}, 0); !reflect.DeepEqual(got, Pair{}) {
		t.Errorf("%+v", got)
	}
}

func TestLargestInAPool(t *testing.T) {
	pairs := []Pair{pair("p", fast(3*gib)), pair("q", free(7*gib)), pair("r", down, fast(9*gib)), pair("s", cluster("d"), fast(4*gib))}
	for _, x := range []struct {
		cluster, pool string
		want          int64
	}{{"c", "", 7 * gib}, {"c", "default", 7 * gib}, {"c", "fast", 3 * gib}, {"", "fast", 4 * gib}, {"c", "slow", 0}} {
		if got := Largest(pairs, x.cluster, x.pool); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
}

// LUNs that nothing is written to yet take nothing, and pairs are full of promises, alike.
func TestThinLUNsAreSpread(t *testing.T) {
	const each, disk = 100 * gib, int64(1000 * gib)
	var pairs []Pair
	for i := range 4 {
		pairs = append(pairs, Pair{Name: string(rune('p' + i)), Cluster: "c", Ready: true, InSync: true, Pools: []Pool{{Name: "default", Capacity: disk - int64(i)*gib, Free: disk - int64(i)*2*gib}}})
	}
	for range 400 {
		c, err := Choose(pairs, ask(each))
		if err != nil {
			t.Fatal(err)
		}
		for i := range pairs {
			if pairs[i].Name == c.Pair {
				pairs[i].LUNs++
				pairs[i].Pools[0].Promised += each
			}
		}
	}
	for _, p := range pairs {
		if p.LUNs < 90 || p.LUNs > 110 {
			t.Errorf("%d of 400 LUNs are on pair %s", p.LUNs, p.Name)
		}
	}
}

// A LUN, and a copy, is refused where it would promise more than may be promised.
func TestOvercommitIsRefused(t *testing.T) {
	pair := func(name string, promised int64) Pair {
		return Pair{Name: name, Cluster: "c", Ready: true, InSync: true, Pools: []Pool{{Name: "main", Capacity: 100, Free: 100, Promised: promised, Promisable: 200}}}
	}
	for _, x := range []struct {
		name  string
		pairs []Pair
		req   Request
		want  string
	}{
		{"there is room", []Pair{pair("a", 150)}, Request{Cluster: "c", Size: 50}, "a"},
		{"one byte more", []Pair{pair("a", 151)}, Request{Cluster: "c", Size: 50}, ""},
		{"another pair has room", []Pair{pair("a", 190), pair("b", 199), pair("d", 100)}, Request{Cluster: "c", Pool: "main", Size: 50}, "d"},
		{"a copy", []Pair{pair("a", 151), pair("b", 0)}, Request{Cluster: "c", Size: 50, SourcePair: "a"}, ""},
		{"a copy that has room", []Pair{pair("a", 150), pair("b", 0)}, Request{Cluster: "c", Size: 50, SourcePair: "a"}, "a"},
		{"more was promised before the limit came", []Pair{pair("a", 900)}, Request{Cluster: "c", Size: 1}, ""},
	} {
		got, err := Choose(x.pairs, x.req)
		if got.Pair != x.want || x.want == "" && (!errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "overcommitPercent")) {
			t.Errorf("%s: %q, %v", x.name, got.Pair, err)
		}
	}
	if _, _, err := Legs([]Pair{pair("a", 190), pair("b", 0)}, Request{Cluster: "c", Size: 80}, 2); !errors.Is(err, ErrNoRoom) {
		t.Errorf("legs: %v", err)
	}
	for size, pairs := range map[int64][]Pair{50: {pair("a", 150)}, 100: {pair("a", 150), pair("b", 20)}, 0: {pair("a", 900)}} {
		if got := Largest(pairs, "c", "main"); got != size {
			t.Errorf("largest: %d, not %d", got, size)
		}
	}
}
