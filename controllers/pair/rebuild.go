package pair

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Rebuilt has the StorageClusters and TargetPairs as far as they can be reconstructed from the
// objects made for them.
type Rebuilt struct {
	Clusters []v1alpha1.StorageCluster
	Pairs    []v1alpha1.TargetPair
	Notes    []string // what could not be reconstructed
}

// traces are the objects that are left of one pair in the namespace.
type traces struct {
	cluster  string
	claims   map[string]*corev1.PersistentVolumeClaim // by node, of its newest disk
	disks    map[string]int32
	pools    map[string]*corev1.PersistentVolumeClaim // additional pools, by name
	members  []*corev1.PersistentVolumeClaim          // of all pools, that may have data
	fast     []string                                 // backing volumes whose own directory is of tier Fast
	sets     map[string]*appsv1.StatefulSet
	services map[string]*corev1.Service
}

// Rebuild reconstructs StorageClusters and TargetPairs from the claims of the backing volumes, and
// from the Services and StatefulSets if they still exist: with the same addresses, disks and
// workers, and with settings that restart no target. A pair without claims is not found: it has no
// data.
func Rebuild(ctx context.Context, c client.Reader, namespace string) (*Rebuilt, error) {
	found, err := gather(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	out := &Rebuilt{}
	clusters, bare := map[string]*v1alpha1.StorageCluster{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		t := found[name]
		p := v1alpha1.TargetPair{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "TargetPair"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelCluster: t.cluster}}, Spec: v1alpha1.TargetPairSpec{Cluster: t.cluster}}
		for _, node := range Nodes {
			n := v1alpha1.PairNode{Name: node, Disk: t.disks[node], Address: t.address(node), Worker: boundTo(t.sets[node])}
			_, n.Domain = t.domain(node)
			if n.Address == "" {
				out.Notes = append(out.Notes, fmt.Sprintf("pair %s: the address of node %s is no longer known: the node gets a new address, and hosts reach it after their next attach", name, node))
			}
			p.Spec.Nodes = append(p.Spec.Nodes, n)
		}
		out.Pairs = append(out.Pairs, p)
		x := clusters[t.cluster]
		if x == nil {
			x = t.storageCluster()
			clusters[t.cluster] = x
			if bare[t.cluster] = len(t.sets) == 0; bare[t.cluster] {
				out.Notes = append(out.Notes, fmt.Sprintf("cluster %s: no StatefulSet is left that shows image, lease and workers: the StorageCluster gets the defaults. For other values, apply your own StorageCluster first", t.cluster))
			}
		}
		t.addPools(x)
		n, _ := v1alpha1.PairNumber(name, t.cluster)
		x.Spec.Pairs = max(x.Spec.Pairs, int32(n)+1)
	}
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		addDomains(clusters[name], out.Pairs, bare[name])
		out.Clusters = append(out.Clusters, *clusters[name])
	}
	return out, operatorImage(ctx, c, namespace, out.Clusters)
}

// gather groups the objects by pair.
func gather(ctx context.Context, c client.Reader, namespace string) (map[string]*traces, error) {
	var claims corev1.PersistentVolumeClaimList
	var sets appsv1.StatefulSetList
	var services corev1.ServiceList
	for _, l := range []client.ObjectList{&claims, &sets, &services} {
		if err := c.List(ctx, l, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelPair, v1alpha1.LabelNode, v1alpha1.LabelCluster}); err != nil {
			return nil, err
		}
	}
	found := map[string]*traces{}
	for i := range claims.Items {
		o := &claims.Items[i]
		pair, node := o.Labels[v1alpha1.LabelPair], o.Labels[v1alpha1.LabelNode]
		if found[pair] == nil {
			found[pair] = &traces{cluster: o.Labels[v1alpha1.LabelCluster], claims: map[string]*corev1.PersistentVolumeClaim{},
				disks: map[string]int32{}, pools: map[string]*corev1.PersistentVolumeClaim{}, sets: map[string]*appsv1.StatefulSet{}, services: map[string]*corev1.Service{}}
		}
		t := found[pair]
		number, pool, more := strings.Cut(strings.TrimPrefix(o.Name, NodeName(pair, node)+"-d"), ".")
		disk, err := strconv.ParseInt(number, 10, 32)
		switch {
		case err != nil:
			continue // none of ours
		case o.Labels[v1alpha1.LabelMember] != "":
			if o.Annotations[annotationEmpty] == "" {
				t.members = append(t.members, o)
			}
			continue
		case more:
			t.pools[pool] = o
			continue
		}
		if t.claims[node] == nil || int32(disk) > t.disks[node] {
			t.claims[node], t.disks[node] = o, int32(disk)
		}
	}
	for i := range sets.Items {
		if t := found[sets.Items[i].Labels[v1alpha1.LabelPair]]; t != nil {
			t.sets[sets.Items[i].Labels[v1alpha1.LabelNode]] = &sets.Items[i]
		}
	}
	for i := range services.Items {
		if t := found[services.Items[i].Labels[v1alpha1.LabelPair]]; t != nil {
			t.services[services.Items[i].Labels[v1alpha1.LabelNode]] = &services.Items[i]
		}
	}
	return found, nil
}

// address of a node: that of its Service, or that of the targets' arguments.
func (t *traces) address(node string) string {
	if s := t.services[node]; s != nil {
		return s.Spec.ClusterIP
	}
	for _, s := range t.sets {
		for _, a := range container(s).Args {
			if v, ok := strings.CutPrefix(a, "--portal="+node+"="); ok {
				return strings.TrimSuffix(v, ":3260")
			}
		}
	}
	return ""
}

func container(s *appsv1.StatefulSet) *corev1.Container {
	for i := range s.Spec.Template.Spec.Containers {
		if c := &s.Spec.Template.Spec.Containers[i]; c.Name == "target" {
			return c
		}
	}
	return &corev1.Container{}
}

// boundTo is the worker that a node was bound to; empty if unknown, because its volume then
// determines the worker.
func boundTo(s *appsv1.StatefulSet) string {
	if s == nil || s.Spec.Template.Spec.Affinity == nil || s.Spec.Template.Spec.Affinity.NodeAffinity == nil {
		return ""
	}
	required := s.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return ""
	}
	for _, term := range required.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// addPools adds the additional pools of a pair to its cluster.
func (t *traces) addPools(x *v1alpha1.StorageCluster) {
	for _, name := range slices.Sorted(maps.Keys(t.pools)) {
		c := t.pools[name]
		if c.Spec.StorageClassName == nil || len(x.Spec.Pools) == 0 || x.Spec.Pool(name) != nil {
			continue
		}
		x.Spec.Pools = append(x.Spec.Pools, v1alpha1.Pool{Name: name, StorageClassName: *c.Spec.StorageClassName, Size: c.Spec.Resources.Requests[corev1.ResourceStorage]})
	}
	for _, c := range t.members {
		addMember(x, c)
	}
	for _, volume := range t.fast {
		if pool := x.Spec.Pool(x.Spec.PoolOf(volume)); pool != nil {
			pool.Tier = v1alpha1.TierFast
		}
	}
}

// addMember adds the volume of a claim to its pool.
func addMember(x *v1alpha1.StorageCluster, claim *corev1.PersistentVolumeClaim) {
	pool, name := x.Spec.Pool(claim.Labels[v1alpha1.LabelPool]), claim.Labels[v1alpha1.LabelMember]
	dash := strings.LastIndexByte(name, '-')
	i, err := strconv.ParseInt(name[dash+1:], 10, 32)
	if pool == nil || err != nil || dash < 1 || claim.Spec.StorageClassName == nil {
		return
	}
	named := func(v v1alpha1.PoolVolumes) bool { return v.Name == name[:dash] }
	if !slices.ContainsFunc(pool.Volumes, named) {
		pool.Volumes = append(pool.Volumes, v1alpha1.PoolVolumes{Name: name[:dash], StorageClassName: *claim.Spec.StorageClassName,
			Size: claim.Spec.Resources.Requests[corev1.ResourceStorage], Tier: claim.Annotations[annotationTier]})
		slices.SortFunc(pool.Volumes, func(a, b v1alpha1.PoolVolumes) int { return strings.Compare(a.Name, b.Name) })
	}
	v := &pool.Volumes[slices.IndexFunc(pool.Volumes, named)]
	v.Count = max(v.Count, int32(i)+1)
}

// storageCluster from one of its pairs.
func (t *traces) storageCluster() *v1alpha1.StorageCluster {
	x := &v1alpha1.StorageCluster{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "StorageCluster"},
		ObjectMeta: metav1.ObjectMeta{Name: t.cluster}, Spec: v1alpha1.StorageClusterSpec{Pairs: 1}}
	for _, node := range Nodes {
		if c := t.claims[node]; c != nil && c.Spec.StorageClassName != nil && len(x.Spec.Pools) == 0 {
			x.Spec.Pools = []v1alpha1.Pool{{Name: c.Labels[v1alpha1.LabelPool], StorageClassName: *c.Spec.StorageClassName,
				Size: c.Spec.Resources.Requests[corev1.ResourceStorage]}}
		}
	}
	x.Spec.FailureDomainKey, _ = t.domain(Nodes[0]) // the StatefulSets have the present one
	for _, node := range Nodes {
		s := t.sets[node]
		if s == nil {
			continue
		}
		spec, target := &s.Spec.Template.Spec, container(s)
		x.Spec.Security.CHAP = s.Annotations[annotationCHAP]
		if text := s.Annotations[annotationScrub]; text != "" {
			_ = json.Unmarshal([]byte(text), &x.Spec.Scrub) // if unreadable, the defaults apply
		}
		if text := s.Annotations[annotationDomains]; text != "" {
			_ = json.Unmarshal([]byte(text), &x.Spec.Domains) // if unreadable, those of the pairs apply
		}
		x.Spec.Image, x.Spec.Resources, x.Spec.NodeSelector = target.Image, withoutDefaults(target.Resources), spec.NodeSelector
		for _, a := range target.Args {
			if v, ok := strings.CutPrefix(a, "--lease="); ok {
				if d, err := time.ParseDuration(v); err == nil {
					x.Spec.Lease = &metav1.Duration{Duration: d}
				}
			}
			if v, ok := strings.CutPrefix(a, "--tier="); ok {
				if volume, is := strings.CutSuffix(v, "/home=fast"); is {
					t.fast = append(t.fast, volume)
				}
			}
			if v, ok := strings.CutPrefix(a, "--tiering="); ok && v != "" {
				x.Spec.Tiering = &v1alpha1.Tiering{Mode: strings.ToUpper(v[:1]) + v[1:]}
			}
			if v, ok := strings.CutPrefix(a, "--cpus="); ok {
				if q, err := resource.ParseQuantity(v); err == nil {
					x.Spec.Balancing = &v1alpha1.Balancing{CPUs: &q}
				}
			}
		}
		for _, o := range spec.Tolerations {
			if o.Key != corev1.TaintNodeNotReady && o.Key != corev1.TaintNodeUnreachable {
				x.Spec.Tolerations = append(x.Spec.Tolerations, o)
			}
		}
		if a := spec.Affinity; a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			x.Spec.FailureDomainKey = a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey
		}
		break
	}
	return x
}

// annotationCHAP on a StatefulSet is the cluster's spec.security.chap, which no argument of the
// targets shows.
const annotationCHAP = "gemel.storage/chap"

// annotationScrub on a StatefulSet is the cluster's spec.scrub.
const annotationScrub = "gemel.storage/scrub"

// annotationDomains on a StatefulSet is the cluster's spec.domains.
const annotationDomains = "gemel.storage/domains"

// annotations of a StatefulSet keep what Rebuild needs and no argument of the targets shows.
func annotations(c *v1alpha1.StorageCluster) map[string]string {
	text, _ := json.Marshal(c.Spec.Scrub) // plain data
	a := map[string]string{annotationCHAP: c.Spec.Security.CHAP, annotationScrub: string(text)}
	if len(c.Spec.Domains) > 0 {
		text, _ = json.Marshal(c.Spec.Domains)
		a[annotationDomains] = string(text)
	}
	return a
}

// operatorImage clears spec.image where targets run the image of the operator, so that they
// continue to follow it.
func operatorImage(ctx context.Context, c client.Reader, namespace string, clusters []v1alpha1.StorageCluster) error {
	var l appsv1.DeploymentList
	if err := c.List(ctx, &l, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/component": "operator"}); err != nil {
		return err
	}
	for _, d := range l.Items {
		for _, k := range d.Spec.Template.Spec.Containers {
			for i := range clusters {
				if clusters[i].Spec.Image == k.Image {
					clusters[i].Spec.Image = ""
				}
			}
		}
	}
	return nil
}
