package placement

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// at is a location: worker, zone, region; empty ones are unknown.
func at(worker, zone, region string) Location {
	l := Location{Worker: worker, Labels: map[string]string{"example.com/rack": "r"}}
	if zone != "" {
		l.Labels[labelZone] = zone
	}
	if region != "" {
		l.Labels[labelRegion] = region
	}
	return l
}

func nodes(a, b Location) func(*Pair) {
	return func(p *Pair) { p.Nodes = []Node{{"a", a}, {"b", b}} }
}

func forWorker(worker, zone, region string) Request {
	return Request{Cluster: "c", Size: gib, Consumer: at(worker, zone, region)}
}

func with(req Request, change func(*Request)) Request {
	change(&req)
	return req
}

func TestNear(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Location
		want nearness
	}{
		"worker":                         {at("w", "z", "r"), at("w", "z", "r"), sameWorker},
		"worker without labels":          {Location{Worker: "w"}, Location{Worker: "w"}, sameWorker},
		"zone":                           {at("w", "z", "r"), at("v", "z", "r"), sameZone},
		"zone without regions":           {at("w", "z", ""), at("v", "z", ""), sameZone},
		"zone, one region unknown":       {at("w", "z", "r"), at("v", "z", ""), sameZone},
		"zone's name in another region":  {at("w", "z", "r"), at("v", "z", "s"), anywhere},
		"region":                         {at("w", "z", "r"), at("v", "y", "r"), sameRegion},
		"region, one zone unknown":       {at("w", "", "r"), at("v", "y", "r"), sameRegion},
		"elsewhere":                      {at("w", "z", "r"), at("v", "y", "s"), anywhere},
		"no labels":                      {at("w", "", ""), at("v", "", ""), anywhere},
		"nothing known":                  {Location{}, Location{}, anywhere},
		"one nothing known":              {Location{}, at("w", "z", "r"), anywhere},
		"zone without a worker's name":   {at("", "z", "r"), at("", "z", "r"), sameZone},
		"other labels do not count":      {Location{Labels: map[string]string{"x": "y"}}, Location{Labels: map[string]string{"x": "y"}}, anywhere},
		"empty labels are as good as no": {Location{Labels: map[string]string{labelZone: ""}}, Location{Labels: map[string]string{labelZone: ""}}, anywhere},
	} {
		if got, back := near(c.a, c.b), near(c.b, c.a); got != c.want || back != got {
			t.Errorf("%s: %d, %d the other way round", name, got, back)
		}
	}
}

func TestChooseNearTheConsumer(t *testing.T) {
	far := nodes(at("w8", "z8", "r8"), at("w9", "z9", "r8"))
	region := nodes(at("w6", "z6", "r1"), at("w9", "z9", "r8"))
	zone := nodes(at("w8", "z8", "r8"), at("w5", "z1", "r1"))
	both := nodes(at("w4", "z1", "r1"), at("w5", "z1", "r1"))
	own := nodes(at("w1", "z1", "r1"), at("w5", "z2", "r1"))
	consumer := forWorker("w1", "z1", "r1")
	for name, c := range map[string]struct {
		pairs      []Pair
		req        Request
		pair, home string
		says       []string
	}{
		"worker before zone":    {[]Pair{pair("p", zone, free(9*gib)), pair("q", own)}, consumer, "q", "a", says("pair q has a node on worker w1", "node a is on worker w1")},
		"zone before region":    {[]Pair{pair("p", region, free(9*gib)), pair("q", zone)}, consumer, "q", "b", says("in zone z1, as worker w1", "node b is in zone z1")},
		"region before any":     {[]Pair{pair("p", far, free(9*gib)), pair("q", region)}, consumer, "q", "a", says("in region r1, as worker w1", "node a is in region r1")},
		"none is near":          {[]Pair{pair("p", far), pair("q", far, free(9*gib))}, consumer, "q", "", says("most free space", "no pair is near worker w1", "equally near")},
		"both nodes in zone":    {[]Pair{pair("p", far, free(9*gib)), pair("q", both)}, consumer, "q", "", says("in zone z1", "equally near, and it chooses")},
		"both or one is equal":  {[]Pair{pair("p", both), pair("q", zone, free(9*gib))}, consumer, "q", "b", says("and has the most free space")},
		"equally near, LUNs":    {[]Pair{pair("p", zone, luns(2)), pair("q", zone, luns(1))}, consumer, "q", "b", says("and has the fewest LUNs")},
		"equally near, by name": {[]Pair{pair("q", zone), pair("p", zone)}, consumer, "p", "b", says("first of equal pairs by name")},
		"in sync before near": {[]Pair{pair("p", own, alone), pair("q", far)}, consumer, "q", "",
			says("the only one with room whose nodes are in sync", "pair p is nearer (on worker w1), but its nodes are not in sync")},
		"not ready":         {[]Pair{pair("p", own, down), pair("q", zone)}, consumer, "q", "b", says("pair p is nearer (on worker w1), but it does not serve", "only one that is ready and has room")},
		"no room":           {[]Pair{pair("p", own, free(1)), pair("q", far)}, consumer, "q", "", says("pair p is nearer", "1 bytes are free")},
		"reserve kept":      {[]Pair{pair("p", own, free(2*gib)), pair("q", far)}, consumer, "p", "a", says("on worker w1")},
		"reserve touched":   {[]Pair{pair("p", own, free(2*gib-1)), pair("q", far)}, consumer, "q", "", says("pair p is nearer (on worker w1), but less than 10 % of its pool would stay free")},
		"next nearer one":   {[]Pair{pair("p", own, free(gib)), pair("q", far), pair("r", zone, free(3*gib))}, consumer, "r", "b", says("pair p is nearer")},
		"no reserve at all": {[]Pair{pair("p", own, free(gib)), pair("q", far, free(3*gib/2))}, consumer, "q", "", says("most free space", "pair p is nearer")},
		"the only one":      {[]Pair{pair("p", own, free(gib))}, consumer, "p", "a", says("on worker w1 and is the only one")},
		"reserve of the pool": {[]Pair{pair("p", own, fast(gib)), pair("q", far, fast(5*gib))}, with(consumer, func(r *Request) { r.Pool = "fast" }), "q", "",
			says("less than 10 %")},
		"zone in another region": {[]Pair{pair("p", nodes(at("x", "z1", "r2"), at("y", "z1", "r2"))), pair("q", region, free(gib*3))}, consumer, "q", "a", says("in region r1")},
		"worker alone is known":  {[]Pair{pair("p", far, free(9*gib)), pair("q", own)}, forWorker("w1", "", ""), "q", "a", says("on worker w1")},
		"labels alone are known": {[]Pair{pair("p", far, free(9*gib)), pair("q", own)}, forWorker("", "z1", "r1"), "q", "a", says("in zone z1, as the workers that may use it")},
		"nodes without labels":   {[]Pair{pair("p", nodes(Location{Worker: "w8"}, Location{})), pair("q", far, free(9*gib))}, consumer, "q", "", says("most free space")},
		"no nodes":               {[]Pair{pair("p")}, consumer, "p", "", says("no pair is near worker w1")},
		"copy": {[]Pair{pair("p", far, free(1)), pair("q", own)}, with(consumer, func(r *Request) { r.SourcePair = "p" }), "p", "",
			says("pair p has the source of the copy", "equally near")},
		"home of a copy": {[]Pair{pair("p", zone, free(1)), pair("q", own)}, with(consumer, func(r *Request) { r.SourcePair = "p" }), "p", "b",
			says("source of the copy", "node b is in zone z1")},
		"other cluster": {[]Pair{pair("p", own, cluster("d")), pair("q", far)}, consumer, "q", "", says("pair q")},
		"no consumer":   {[]Pair{pair("p", own), pair("q", far, free(9*gib))}, ask(gib), "q", "", says("pair q has the most free space")},
	} {
		got, err := Choose(c.pairs, c.req)
		if err != nil || got.Pair != c.pair || got.Home != c.home {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for _, s := range c.says {
			if !strings.Contains(got.Reason, s) {
				t.Errorf("%s: %q does not say %q", name, got.Reason, s)
			}
		}
		if c.req.Consumer.Worker == "" && len(c.req.Consumer.Labels) == 0 && strings.ContainsAny(got.Reason, ";") {
			t.Errorf("%s: %q speaks of a consumer", name, got.Reason)
		}
	}
}

// before is the order of pairs without consumers.
func before(a, b Pair) int {
	if a.InSync != b.InSync {
		if a.InSync {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.room(""), a.room("")), cmp.Compare(b.free(""), a.free("")), cmp.Compare(a.LUNs, b.LUNs), cmp.Compare(a.Name, b.Name))
}

// Whatever the pairs are: without a consumer the answer is that of the order before; with one, the
// same requests find a place, a pair in sync is not given up for a near one, no pair that keeps its
// reserve is passed over for a farther one, and the home is never the farther node.
func TestNearnessPropertiesForRandomPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	place := func() Location {
		name := func(prefix string, n int) string {
			if r.IntN(5) == 0 {
				return ""
			}
			return fmt.Sprint(prefix, r.IntN(n))
		}
		return at(name("w", 6), name("z", 3), name("r", 2))
	}
	counts := map[nearness]int{}
	for range 20000 {
		pairs := random(r)
		for i := range pairs {
			pairs[i].Pools[0].Capacity = int64(r.IntN(20)) * gib
			pairs[i].Pools[0].Promised = int64(r.IntN(30)) * gib
			nodes(place(), place())(&pairs[i])
		}
		req := Request{Cluster: "c", Size: int64(1+r.IntN(5)) * gib}
		old, err := Choose(pairs, req)
		fit := slices.DeleteFunc(slices.Clone(pairs), func(p Pair) bool { return p.Cluster != "c" || refuses(p, req) != nil })
		if (err == nil) != (len(fit) > 0) || err == nil && (old.Pair != slices.MinFunc(fit, before).Name || old.Home != "") {
			t.Fatalf("without a consumer %v: %+v, %v", pairs, old, err)
		}
		req.Consumer = place()
		got, err := Choose(pairs, req)
		if (err == nil) != (len(fit) > 0) {
			t.Fatalf("%v: %+v, %v", pairs, got, err)
		}
		if err != nil {
			continue
		}
		p := pairs[slices.IndexFunc(pairs, func(p Pair) bool { return p.Name == got.Pair })]
		counts[p.nearest(req.Consumer)]++
		for _, o := range fit {
			if o.InSync && !p.InSync || o.InSync == p.InSync && o.keepsReserve(req) && o.nearest(req.Consumer) > p.nearest(req.Consumer) {
				t.Fatalf("%+v was passed over for %+v, consumer %+v", o, p, req.Consumer)
			}
		}
		a, b := near(p.Nodes[0].Location, req.Consumer), near(p.Nodes[1].Location, req.Consumer)
		if a > b && got.Home != "a" || b > a && got.Home != "b" || a == b && got.Home != "" {
			t.Fatalf("home %q of %+v, consumer %+v", got.Home, p, req.Consumer)
		}
		if !strings.HasPrefix(got.Reason, "pair "+got.Pair+" ") {
			t.Fatal(got.Reason)
		}
	}
	for _, n := range []nearness{anywhere, sameRegion, sameZone, sameWorker} {
		if counts[n] < 300 {
			t.Errorf("nearness %d was chosen %d times only", n, counts[n])
		}
	}
}
