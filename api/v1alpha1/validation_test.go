package v1alpha1_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m, "../../config/crd/bases") }

func newClient(t *testing.T) client.Client {
	t.Helper()
	cfg := envtest.Config(t)
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func cluster(name string) *v1alpha1.StorageCluster {
	return &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.StorageClusterSpec{Pairs: 2,
		Pools: []v1alpha1.Pool{{Name: "default", StorageClassName: "disks", Size: resource.MustParse("10Gi")}}}}
}

func lun(name string) *v1alpha1.LogicalUnit {
	return &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "main", Size: resource.MustParse("1Gi")}}
}

func snapshot(name string) *v1alpha1.LogicalUnitSnapshot {
	return &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "main", Source: "x"}}
}

func pair(name string) *v1alpha1.TargetPair {
	return &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TargetPairSpec{Cluster: "main",
		Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}
}

const uuid1, uuid2 = "11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-666666666666"

var iqns = []string{"iqn.2026-11.storage.gemel:host-1", "iqn.2026-11.storage.gemel:host-2"}

// The modes of a LUN may change; what is none is refused.
func TestMutableFieldsOfALogicalUnit(t *testing.T) {
	c, ctx := newClient(t), context.Background()
	l := lun("mutable")
	if err := c.Create(ctx, l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(ctx, l) })
	for _, x := range []struct {
		node, cache, says string
	}{{"b", "write-through", ""}, {"a", "write-back", ""}, {"", "", ""}, {"c", "", "preferredNode"}, {"", "off", "writeCache"}} {
		l.Spec.PreferredNode, l.Spec.WriteCache = x.node, x.cache
		if err := c.Update(ctx, l); (x.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// What cannot be right is refused when it is made, and the refusal names the field.
func TestRefusedWhenMade(t *testing.T) {
	c := newClient(t)
	hosts := func(l *v1alpha1.LogicalUnit) *v1alpha1.LogicalUnit {
		for _, i := range iqns {
			l.Spec.Hosts = append(l.Spec.Hosts, v1alpha1.HostAccess{IQN: i})
		}
		return l
	}
	with := func(f func(*v1alpha1.StorageCluster)) client.Object {
		x := cluster("refused")
		f(x)
		return x
	}
	withLUN := func(f func(*v1alpha1.LogicalUnit)) client.Object {
		x := lun("refused")
		f(x)
		return x
	}
	for want, o := range map[string]client.Object{
		"spec.pairs":                     with(func(c *v1alpha1.StorageCluster) { c.Spec.Pairs = -1 }),
		"spec.security.chap":             with(func(c *v1alpha1.StorageCluster) { c.Spec.Security.CHAP = "OneWay" }),
		"spec.pools":                     with(func(c *v1alpha1.StorageCluster) { c.Spec.Pools = nil }),
		"spec.pools[0].size":             with(func(c *v1alpha1.StorageCluster) { c.Spec.Pools[0].Size = resource.MustParse("1Mi") }),
		"spec.pools[0].storageClassName": with(func(c *v1alpha1.StorageCluster) { c.Spec.Pools[0].StorageClassName = "" }),
		"resources.limits.cpu": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1")}
		}),
		"schedule: five fields":                           with(func(c *v1alpha1.StorageCluster) { c.Spec.Scrub.Schedule = "@weekly" }),
		"schedule: five fields with a space between them": with(func(c *v1alpha1.StorageCluster) { c.Spec.Scrub.Schedule = "CRON_TZ=UTC 0 2 * * 6" }),
		"bytesPerSecond: from 1Mi to 1Ti": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Scrub.BytesPerSecond = new(resource.MustParse("64Ki"))
		}),
		"spec.scrub.parallel":      with(func(c *v1alpha1.StorageCluster) { c.Spec.Scrub.Parallel = 65 }),
		"lease: from 200ms to 30s": with(func(c *v1alpha1.StorageCluster) { c.Spec.Lease = &metav1.Duration{Duration: 1} }),
		"spec.balancing.mode":      with(func(c *v1alpha1.StorageCluster) { c.Spec.Balancing = &v1alpha1.Balancing{Mode: "auto"} }),
		"cpus: from 10m to 4096": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Balancing = &v1alpha1.Balancing{CPUs: new(resource.MustParse("5m"))}
		}),
		"failBackDelay: from 5s to 24h": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Balancing = &v1alpha1.Balancing{FailBackDelay: &metav1.Duration{Duration: 5500 * time.Millisecond}}
		}),
		"domains: the couples have more pairs in sum than spec.pairs; increase spec.pairs": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"a", "b"}, Pairs: 2}, {Between: []string{"b", "c"}, Pairs: 1}}
		}),
		"between: the nodes of a pair are in different failure domains; name two": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"a", "a"}, Pairs: 1}}
		}),
		"domains: two failure domains are one couple, in either order; name each couple once": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"a", "b"}, Pairs: 1}, {Between: []string{"b", "a"}, Pairs: 1}}
		}),
		"spec.domains[0].between: Too many": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"a", "b", "c"}, Pairs: 1}}
		}),
		"spec.domains[0].between[1]": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"a", "no label value"}, Pairs: 1}}
		}),
		"spec.domains[0].pairs": with(func(c *v1alpha1.StorageCluster) {
			c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"a", "b"}}}
		}),
		"metadata.name":                   cluster("a." + strings.Repeat("a", 40)),
		"hosts: a LUN that is not shared": hosts(lun("refused")),
		"spec.hosts[0].iqn":               withLUN(func(l *v1alpha1.LogicalUnit) { l.Spec.Hosts = []v1alpha1.HostAccess{{IQN: "worker-1"}} }),
		"size: 1Mi at least":              withLUN(func(l *v1alpha1.LogicalUnit) { l.Spec.Size = resource.MustParse("1Ki") }),
		"either logicalUnit or snapshot":  withLUN(func(l *v1alpha1.LogicalUnit) { l.Spec.Source = &v1alpha1.Source{LogicalUnit: "x", Snapshot: "y"} }),
		"spec.preferredNode":              withLUN(func(l *v1alpha1.LogicalUnit) { l.Spec.PreferredNode = "c" }),
		"spec.pinnedNode":                 withLUN(func(l *v1alpha1.LogicalUnit) { l.Spec.PinnedNode = "none" }),
		"spec.placement.uuid":             withLUN(func(l *v1alpha1.LogicalUnit) { l.Spec.Placement = &v1alpha1.Placement{Pair: "p", UUID: "x"} }),
		"spec.placement.home": withLUN(func(l *v1alpha1.LogicalUnit) {
			l.Spec.Placement = &v1alpha1.Placement{Pair: "p", UUID: uuid1, Home: "c"}
		}),
		"spec.consumer.worker": withLUN(func(l *v1alpha1.LogicalUnit) { l.Spec.Consumer = &v1alpha1.Consumer{} }),
		"spec.consumer.topology.zone": withLUN(func(l *v1alpha1.LogicalUnit) {
			l.Spec.Consumer = &v1alpha1.Consumer{Worker: "w", Topology: map[string]v1alpha1.TopologyValue{"zone": v1alpha1.TopologyValue(strings.Repeat("z", 64))}}
		}),
		"spec.consumer.topology: Too many": withLUN(func(l *v1alpha1.LogicalUnit) {
			l.Spec.Consumer = &v1alpha1.Consumer{Worker: "w", Topology: map[string]v1alpha1.TopologyValue{}}
			for i := range 33 {
				l.Spec.Consumer.Topology[strings.Repeat("k", i+1)] = "v"
			}
		}),
		"hosts: one with replay is alone": withLUN(func(l *v1alpha1.LogicalUnit) {
			l.Spec.Shared, l.Spec.Hosts = true, []v1alpha1.HostAccess{{IQN: iqns[0], ReadOnly: true, Replay: true}, {IQN: iqns[1], ReadOnly: true}}
		}),
		"replay is alone, and readOnly": withLUN(func(l *v1alpha1.LogicalUnit) {
			l.Spec.Hosts = []v1alpha1.HostAccess{{IQN: iqns[0], Replay: true}}
		}),
		"destroy: hosts still reach": withLUN(func(l *v1alpha1.LogicalUnit) {
			l.Spec.Destroy, l.Spec.Hosts = true, []v1alpha1.HostAccess{{IQN: iqns[0]}}
		}),
		"spec.nodes: Invalid value":            &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: v1alpha1.TargetPairSpec{Cluster: "main", Nodes: []v1alpha1.PairNode{{Name: "a"}}}},
		"spec.source in body should be at lea": &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "main"}},
	} {
		if err := c.Create(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	reader := lun("reader")
	reader.Spec.Hosts = []v1alpha1.HostAccess{{IQN: iqns[0], ReadOnly: true, Replay: true}}
	if err := c.Create(t.Context(), reader); err != nil {
		t.Error(err)
	}
	shared := hosts(lun("shared"))
	shared.Spec.Shared = true
	if err := c.Create(t.Context(), shared); err != nil {
		t.Error(err)
	}
}

// The label of spec.domains stays as long as they do; the list itself may change.
func TestDomainsKeepTheirLabel(t *testing.T) {
	c := newClient(t)
	x := cluster("laid")
	x.Spec.Domains = []v1alpha1.Domains{{Between: []string{"a", "b"}, Pairs: 1}, {Between: []string{"a", "c"}, Pairs: 1}}
	if err := c.Create(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	x.Spec.FailureDomainKey = "rack"
	if err := c.Update(t.Context(), x); err == nil || !strings.Contains(err.Error(), "failureDomainKey: spec.domains has values of this label") {
		t.Errorf("%v", err)
	}
	x.Spec.FailureDomainKey, x.Spec.Domains = corev1.LabelHostname, []v1alpha1.Domains{{Between: []string{"c", "b"}, Pairs: 2}}
	if err := c.Update(t.Context(), x); err != nil {
		t.Error(err)
	}
	x.Spec.FailureDomainKey, x.Spec.Domains = "rack", nil
	if err := c.Update(t.Context(), x); err != nil {
		t.Error(err)
	}
}

// A cluster that says nothing of scrubs has them, one pair at a time.
func TestScrubsHaveASchedule(t *testing.T) {
	c := newClient(t)
	x := cluster("scrubbed")
	if err := c.Create(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	if s := x.Spec.Scrub; s.Schedule != "0 2 * * 6" || s.Parallel != 1 || s.Repair != nil || s.Suspend || s.BytesPerSecond != nil {
		t.Errorf("%+v", s)
	}
	x.Spec.Scrub = v1alpha1.Scrub{Schedule: "30 1 * * mon-fri", Repair: new(false), BytesPerSecond: new(resource.MustParse("200Mi")), Parallel: 4}
	if err := c.Update(t.Context(), x); err != nil {
		t.Error(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(x), x); err != nil || x.Spec.Scrub.Repair == nil || *x.Spec.Scrub.Repair {
		t.Errorf("repair: false is not kept: %v %+v", err, x.Spec.Scrub)
	}
}

// What must not change does not.
func TestRefusedWhenChanged(t *testing.T) {
	c := newClient(t)
	placed := func(name string) *v1alpha1.LogicalUnit {
		l := lun(name)
		l.Spec.Placement = &v1alpha1.Placement{Pair: "p", UUID: uuid1}
		return l
	}
	used := func(name string) *v1alpha1.LogicalUnit {
		l := lun(name)
		l.Spec.Consumer = &v1alpha1.Consumer{Worker: "w1", Topology: map[string]v1alpha1.TopologyValue{"topology.kubernetes.io/zone": "z1"}}
		return l
	}
	for want, x := range map[string]struct {
		o      client.Object
		change func(client.Object)
	}{
		"pairs: fewer pairs":                   {cluster("fewer"), func(o client.Object) { o.(*v1alpha1.StorageCluster).Spec.Pairs = 1 }},
		"storageClassName: a pool's class":     {cluster("class"), func(o client.Object) { o.(*v1alpha1.StorageCluster).Spec.Pools[0].StorageClassName = "other" }},
		"cluster: a LUN stays":                 {lun("cluster"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Cluster = "other" }},
		"source: what a LUN":                   {lun("source"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Source = &v1alpha1.Source{Snapshot: "s"} }},
		"size: a LUN is never":                 {lun("smaller"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Size = resource.MustParse("1Mi") }},
		"placement: it is written once":        {placed("moved"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Placement.UUID = uuid2 }},
		"placement: it is written once, b":     {placed("unplaced"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Placement = nil }},
		"placement: it is written once, be":    {placed("home"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Placement.Home = "b" }},
		"consumer: it is what was known":       {used("consumer"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Consumer.Worker = "w2" }},
		"consumer: it is what was known when":  {used("unused"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Consumer = nil }},
		"consumer: it is what was known when ": {lun("late"), func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Consumer = &v1alpha1.Consumer{Worker: "w"} }},
		"destroy: it cannot be taken": {func() client.Object { l := lun("kept"); l.Spec.Destroy = true; return l }(),
			func(o client.Object) { o.(*v1alpha1.LogicalUnit).Spec.Destroy = false }},
		"source: what a snapshot": {snapshot("source"), func(o client.Object) { o.(*v1alpha1.LogicalUnitSnapshot).Spec.Source = "y" }},
		"address: sessions know it": {func() client.Object { p := pair("address"); p.Spec.Nodes[0].Address = "10.0.0.1"; return p }(),
			func(o client.Object) { o.(*v1alpha1.TargetPair).Spec.Nodes[0].Address = "10.0.0.2" }},
		"cluster: a pair belongs": {pair("cluster"), func(o client.Object) { o.(*v1alpha1.TargetPair).Spec.Cluster = "other" }},
	} {
		if err := c.Create(t.Context(), x.o); err != nil {
			t.Fatalf("%q: %v", want, err)
		}
		x.change(x.o)
		if err := c.Update(t.Context(), x.o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	// And what may change does.
	l := placed("grows")
	if err := c.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	l.Spec.Size, l.Spec.Hosts, l.Spec.PreferredNode = resource.MustParse("2Gi"), []v1alpha1.HostAccess{{IQN: iqns[0]}}, "b"
	if err := c.Update(t.Context(), l); err != nil {
		t.Error(err)
	}
}

// Samples work as they are, and every field has a sentence for `kubectl explain`.
func TestSamples(t *testing.T) {
	c := newClient(t)
	files, err := filepath.Glob("../../config/samples/storagecluster*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(raw, &u.Object); err != nil {
			t.Fatal(err)
		}
		if err := c.Create(context.Background(), u, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestEveryFieldIsExplained(t *testing.T) {
	files, err := filepath.Glob("../../config/crd/bases/*.yaml")
	if err != nil || len(files) != 7 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(raw, &crd); err != nil {
			t.Fatal(err)
		}
		properties, _ := crd.Spec.Versions[0].Schema.OpenAPIV3Schema["properties"].(map[string]any)
		for _, part := range []string{"spec", "status"} {
			explained(t, filepath.Base(f)+" "+part, properties[part])
		}
	}
}

func explained(t *testing.T, at string, schema any) {
	m, ok := schema.(map[string]any)
	if !ok {
		return
	}
	properties, _ := m["properties"].(map[string]any)
	for name, p := range properties {
		pm, _ := p.(map[string]any)
		if text, _ := pm["description"].(string); len(text) < 8 {
			t.Errorf("%s.%s has no description", at, name)
		}
		explained(t, at+"."+name, p)
	}
	explained(t, at+"[]", m["items"])
}

// A cluster without balancing has none, and one with an empty one has the defaults.
func TestBalancingOfACluster(t *testing.T) {
	c, ctx := newClient(t), context.Background()
	for _, x := range []struct {
		b     *v1alpha1.Balancing
		mode  string
		delay time.Duration
	}{{nil, "", 0}, {&v1alpha1.Balancing{}, v1alpha1.BalancingAuto, 30 * time.Second},
		{&v1alpha1.Balancing{Mode: v1alpha1.BalancingOff, FailBackDelay: &metav1.Duration{Duration: 24 * time.Hour}}, v1alpha1.BalancingOff, 24 * time.Hour},
		{&v1alpha1.Balancing{Mode: v1alpha1.BalancingObserve, FailBackDelay: &metav1.Duration{Duration: 5 * time.Second}}, v1alpha1.BalancingObserve, 5 * time.Second}} {
		o := cluster("balanced")
		o.Spec.Balancing = x.b
		if err := c.Create(ctx, o, client.DryRunAll); err != nil {
			t.Errorf("%+v: %v", x.b, err)
			continue
		}
		got := o.Spec.Balancing
		if (got == nil) != (x.b == nil) || got != nil && (got.Mode != x.mode || got.FailBackDelay.Duration != x.delay) {
			t.Errorf("%+v, want %v %v", got, x.mode, x.delay)
		}
	}
}
