package logicalunit

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const uuidOfSource = "fedcba98-89ab-cdef-0123-456789abcdef"

// near makes a fixture with two pairs: p on the workers w1 and w2 in zone z1, q on w3 in zone z2
// and w4, whose Node does not exist, but whose Host is in zone z3.
func near(t *testing.T, change func(*v1alpha1.LogicalUnit)) (*fixture, *nodeReads) {
	t.Helper()
	f, reads := setup(t, change), &nodeReads{}
	pair := func(name, a, b string) *v1alpha1.TargetPair {
		return &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TargetPairSpec{Cluster: "c",
			Nodes: []v1alpha1.PairNode{{Name: "b", Worker: b}, {Name: "a", Worker: a}}}}
	}
	worker := func(name, zone string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: zoneOf(zone)}}
	}
	for _, o := range []client.Object{pair("q", "w3", "w4"), worker("w1", "z1"), worker("w2", "z1"), worker("w3", "z2"), worker("w5", "z2"), worker("w6", ""),
		&v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "w4"}, Spec: v1alpha1.HostSpec{Topology: zoneOf("z3")}},
		&v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "source", Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
			Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Placement: &v1alpha1.Placement{Pair: "p", UUID: uuidOfSource}}}} {
		if err := f.c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	p := pair("p", "w1", "w2")
	old := &v1alpha1.TargetPair{}
	if err := f.c.Get(t.Context(), client.ObjectKeyFromObject(p), old); err != nil {
		t.Fatal(err)
	}
	p.ResourceVersion = old.ResourceVersion
	if err := f.c.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	f.r.Client = interceptor.NewClient(f.c.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, ok := o.(*corev1.Node); ok {
			reads.count++
			if reads.fail != nil {
				return reads.fail
			}
		}
		return c.Get(ctx, key, o, opts...)
	}})
	return f, reads
}

type nodeReads struct {
	count int
	fail  error
}

func zoneOf(zone string) map[string]string {
	if zone == "" {
		return nil
	}
	return map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "r"}
}

func consumer(worker, zone string) func(*v1alpha1.LogicalUnit) {
	return func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Consumer = &v1alpha1.Consumer{Worker: worker}
		for k, v := range zoneOf(zone) {
			if lu.Spec.Consumer.Topology == nil {
				lu.Spec.Consumer.Topology = map[string]v1alpha1.TopologyValue{}
			}
			lu.Spec.Consumer.Topology[k] = v1alpha1.TopologyValue(v)
		}
	}
}

// from restricts the LUN to the workers in some zones of the region r.
func from(zones ...string) func(*v1alpha1.LogicalUnit) {
	return func(lu *v1alpha1.LogicalUnit) {
		for _, z := range zones {
			lu.Spec.AccessibleFrom = append(lu.Spec.AccessibleFrom, v1alpha1.TopologyTerm{MatchLabels: map[string]v1alpha1.TopologyValue{
				corev1.LabelTopologyZone: v1alpha1.TopologyValue(z), corev1.LabelTopologyRegion: "r"}})
		}
	}
}

func placedEvents(f *fixture) (out []string) {
	for {
		select {
		case e := <-f.r.Recorder.(*events.FakeRecorder).Events:
			if strings.Contains(e, v1alpha1.ReasonPlaced) {
				out = append(out, e)
			}
		default:
			return out
		}
	}
}

func TestLUNIsPlacedNearItsConsumer(t *testing.T) {
	all := func(list ...func(*v1alpha1.LogicalUnit)) func(*v1alpha1.LogicalUnit) {
		return func(lu *v1alpha1.LogicalUnit) {
			for _, f := range list {
				f(lu)
			}
		}
	}
	prefer := func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "a" }
	clone := func(lu *v1alpha1.LogicalUnit) { lu.Spec.Source = &v1alpha1.Source{LogicalUnit: "source"} }
	for name, c := range map[string]struct {
		change            func(*v1alpha1.LogicalUnit)
		pair, home, asked string
		says              string
	}{
		"its workers' zone":     {from("z1"), "p", "", "", "pair p has a node in zone z1, as the workers that may use it; its nodes are equally near, and it chooses the home"},
		"its workers' other":    {from("z2"), "q", "a", "a", "pair q has a node in zone z2, as the workers that may use it; its node a is in zone z2 and becomes the home"},
		"workers of two zones":  {from("z1", "z2"), "q", "", "", "pair q has a node in region r, as the workers that may use it and has the fewest LUNs; its nodes are equally near, and it chooses the home"},
		"consumer of two zones": {all(from("z1", "z2"), consumer("w2", "z1")), "p", "b", "b", "its node b is on worker w2 and becomes the home"},
		"no consumer":           {nil, "q", "", "", "pair q has the fewest LUNs"},
		"on its worker":         {consumer("w2", "z1"), "p", "b", "b", "pair p has a node on worker w2; its node b is on worker w2 and becomes the home"},
		"labels of its Node":    {consumer("w5", ""), "q", "a", "a", "pair q has a node in zone z2, as worker w5; its node a is in zone z2 and becomes the home"},
		"labels of the Host":    {consumer("w9", "z3"), "q", "b", "b", "pair q has a node in zone z3, as worker w9; its node b is in zone z3 and becomes the home"},
		"the driver's are old":  {consumer("w5", "z1"), "q", "a", "a", "pair q has a node in zone z2, as worker w5; its node a is in zone z2 and becomes the home"},
		"the driver's alone":    {consumer("w6", "z1"), "p", "", "", "pair p has a node in zone z1, as worker w6; its nodes are equally near, and it chooses the home"},
		"unknown worker":        {consumer("w9", ""), "q", "", "", "pair q has the fewest LUNs; no pair is near worker w9; its nodes are equally near, and it chooses the home"},
		"worker without labels": {consumer("w6", ""), "q", "", "", "pair q has the fewest LUNs; no pair is near worker w6; its nodes are equally near, and it chooses the home"},
		"preferredNode wins":    {all(consumer("w2", "z1"), prefer), "p", "b", "a", "becomes the home; spec.preferredNode makes node a the home"},
		"a copy gets a home":    {all(consumer("w2", "z1"), clone), "p", "b", "b", "pair p has the source of the copy; its node b is on worker w2 and becomes the home"},
		"a copy far away":       {all(consumer("w3", "z2"), clone), "p", "", "", "pair p has the source of the copy; its nodes are equally near, and it chooses the home"},
	} {
		f, reads := near(t, c.change)
		lu, _, err := f.look()
		if err != nil || lu.Spec.Placement == nil || lu.Spec.Placement.Pair != c.pair || lu.Spec.Placement.Home != c.home || f.asked.GetPreferredNode() != c.asked ||
			!strings.HasSuffix(lu.Annotations[v1alpha1.AnnotationPlaced], c.says) {
			t.Errorf("%s: %+v, %q, asked for %q, %v", name, lu.Spec.Placement, lu.Annotations[v1alpha1.AnnotationPlaced], f.asked.GetPreferredNode(), err)
		}
		if e := placedEvents(f); len(e) != 1 || !strings.HasSuffix(e[0], c.says) {
			t.Errorf("%s: %q", name, e)
		}
		if lu.Spec.Consumer == nil && lu.Spec.AccessibleFrom == nil && reads.count > 0 {
			t.Errorf("%s: %d Nodes were read, although no consumer is known", name, reads.count)
		}
		// A person or a class has not asked for the home: the object restored from the disks does
		// not name it either.
		if got := f.asked.GetLabels()[LabelPrefer]; got != lu.Spec.PreferredNode {
			t.Errorf("%s: label %q", name, got)
		}
		f.look()
		if e := placedEvents(f); len(e) != 0 {
			t.Errorf("%s: placed again: %q", name, e)
		}
	}
}

// Nearness never fails or delays a LUN: Nodes that cannot be read have no labels.
func TestLUNIsPlacedWhenNodesCannotBeRead(t *testing.T) {
	f, reads := near(t, consumer("w2", "z1"))
	reads.fail = errors.New("injected by the test")
	if lu, _, err := f.look(); err != nil || lu.Spec.Placement.Pair != "p" || lu.Spec.Placement.Home != "b" {
		t.Fatalf("by the names of the workers: %+v, %v", lu.Spec.Placement, err)
	}
	f, reads = near(t, consumer("w5", "z2"))
	reads.fail = errors.New("injected by the test")
	if lu, _, err := f.look(); err != nil || lu.Spec.Placement.Pair != "q" || condition(lu, "Ready") != "True Ready" {
		t.Fatalf("%+v, %v", lu, err)
	}
}

// Once the placement is written, its home stays: the LUN is requested with it after a crash, even
// if the worker has other labels by then.
func TestHomeIsThatOfThePlacement(t *testing.T) {
	f, _ := near(t, consumer("w5", ""))
	f.fail["create"] = codes.Unavailable
	if lu, _, err := f.look(); err == nil || lu.Spec.Placement.Home != "a" {
		t.Fatalf("%+v, %v", lu.Spec.Placement, err)
	}
	var node corev1.Node
	if err := f.c.Get(t.Context(), client.ObjectKey{Name: "w5"}, &node); err != nil {
		t.Fatal(err)
	}
	node.Labels = zoneOf("z3")
	if err := f.c.Update(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
	delete(f.fail, "create")
	if lu, _, err := f.look(); err != nil || f.asked.PreferredNode != "a" || lu.Spec.Placement.Home != "a" {
		t.Fatalf("asked for %q, %v", f.asked.GetPreferredNode(), err)
	}
}
