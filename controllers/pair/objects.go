package pair

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/config/rbac"
	"github.com/gemel-storage/gemel/internal/apply"
)

//go:embed manifests/*.yaml
var files embed.FS

var manifests = apply.Parse(files, "manifests/*.yaml")

func (r *Reconciler) apply(ctx context.Context, file string, data any) error {
	objs, err := manifests.Render(file, data)
	if err != nil {
		return err
	}
	return r.applied().Objects(ctx, objs...)
}

// applied is what this process has applied: in a cluster in which nothing changes it writes
// nothing.
func (r *Reconciler) applied() *apply.Memory {
	r.memory.once.Do(func() {
		r.memory.Memory = apply.Memory{Client: r.Client, Manager: v1alpha1.OperatorManager,
			Whole: []client.Object{&appsv1.StatefulSet{}, &corev1.Service{}, &corev1.PersistentVolumeClaim{}}}
	})
	return &r.memory.Memory
}

// memory is made at its first use.
type memory struct {
	once sync.Once
	apply.Memory
}

// ensureShared creates what both nodes use. The Lease is the pair's record: it is created empty,
// and only the targets write it. If it is missing after the pair has started, it is not created
// again: an empty Lease would fence both nodes at their next read, while a missing one only makes
// them wait.
func (r *Reconciler) ensureShared(ctx context.Context, p *v1alpha1.TargetPair) error {
	lease := NewLease(p, r.Namespace)
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(lease), &coordinationv1.Lease{})
	switch {
	case apierrors.IsNotFound(err) && p.Status.Epoch > 0:
		return waiting(v1alpha1.ReasonMissing, "Lease %s/%s, the record of the pair, does not exist: the pair continues to serve hosts, but no node can take over. "+
			"Restore the Lease; if that is not possible, create an empty Lease with the label %s=%s and run kubectl gemel pair promote with the surviving node",
			lease.Namespace, lease.Name, v1alpha1.LabelPair, p.Name)
	case apierrors.IsNotFound(err):
		err = client.IgnoreAlreadyExists(r.Create(ctx, lease))
	}
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	if err := r.apply(ctx, "pair.yaml", map[string]any{"Base": Base(p.Name), "Namespace": r.Namespace, "Labels": labels(p, ""), "Selector": selector(p, "")}); err != nil {
		return err
	}
	role, binding := rbac.Target(r.Namespace, Base(p.Name), Base(p.Name))
	for _, o := range []client.Object{role, binding} {
		u, err := apply.Typed(o, r.Scheme())
		if err == nil {
			u.SetLabels(labels(p, ""))
			err = r.applied().Objects(ctx, u)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureServices creates the Service of each node and records its address in the spec, which pins
// the address.
func (r *Reconciler) ensureServices(ctx context.Context, p *v1alpha1.TargetPair) error {
	before := p.DeepCopy()
	for i := range p.Spec.Nodes {
		n := &p.Spec.Nodes[i]
		err := r.apply(ctx, "network.yaml", map[string]any{"Name": NodeName(p.Name, n.Name), "Namespace": r.Namespace,
			"Labels": labels(p, n.Name), "Selector": selector(p, n.Name), "Address": n.Address})
		if err != nil {
			return err
		}
		if n.Address != "" {
			continue
		}
		s := &corev1.Service{}
		if err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: NodeName(p.Name, n.Name)}, s); err != nil {
			return err
		}
		n.Address = s.Spec.ClusterIP
	}
	if !slices.Equal(before.Spec.Nodes, p.Spec.Nodes) {
		return r.Update(ctx, p)
	}
	return nil
}

// ErrClass: a StorageClass that cannot hold backing volumes.
var ErrClass = errors.New("storageClassName")

// ensureClaims creates the claims of the first pool, and rejects volumes that are not local to one
// worker.
func (r *Reconciler) ensureClaims(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair) error {
	d := diskOf(&c.Spec.Pools[0])
	class, unfit, err := r.storageClass(ctx, d)
	if err == nil {
		err = unfit
	}
	for i := 0; err == nil && i < len(p.Spec.Nodes); i++ {
		n := &p.Spec.Nodes[i]
		_, err = r.ensureClaim(ctx, c, p, n, d, class, ClaimName(p.Name, n.Name, n.Disk), nil, nil)
	}
	return err
}

// ensureClaim creates the claim of a node's backing volume, with more labels and annotations,
// unless the class is unfit, and checks the bound volume.
func (r *Reconciler) ensureClaim(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, n *v1alpha1.PairNode, d *disk, class *storagev1.StorageClass, name string, more map[string]string, unfit error) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name}}
	err := r.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	switch {
	case apierrors.IsNotFound(err) && unfit != nil:
		return claim, unfit
	case apierrors.IsNotFound(err):
		if class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
			return claim, waiting(v1alpha1.ReasonInvalid, "%s.storageClassName: %q binds its volumes before target pods are scheduled, so that both volumes of a pair can be on one worker: "+
				"name a StorageClass with volumeBindingMode: WaitForFirstConsumer", d.field, class.Name)
		}
		l := labels(p, n.Name)
		l[v1alpha1.LabelPool] = d.pool
		maps.Copy(l, more)
		claim.Name, claim.Namespace = name, r.Namespace // Get has cleared them
		return claim, r.apply(ctx, "claim.yaml", map[string]any{"Claim": name, "Namespace": r.Namespace, "Labels": l, "Annotations": domainMark(c, n),
			"StorageClass": d.class, "Size": d.size.String()})
	case err == nil && claim.Spec.VolumeName != "":
		err = r.checkVolume(ctx, claim.Spec.VolumeName)
	}
	return claim, err
}

// checkVolume rejects a backing volume that is not local, and sets its reclaim policy to Retain.
func (r *Reconciler) checkVolume(ctx context.Context, name string) error {
	v := &corev1.PersistentVolume{}
	if err := r.Get(ctx, client.ObjectKey{Name: name}, v); err != nil {
		return err
	}
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return waiting(v1alpha1.ReasonInvalid, "PersistentVolume %s has no node affinity: Gemel replicates the data and needs local volumes, so that the loss of one worker costs one copy only: use a StorageClass of local volumes", name)
	}
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return nil
	}
	patch := client.MergeFrom(v.DeepCopy())
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	return r.Patch(ctx, v, patch)
}

// args of gemel-target.
func (r *Reconciler) args(c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, node string, m mounts) []string {
	a := []string{"--cluster=" + p.Spec.Cluster, "--pair=" + p.Name, "--node=" + node, "--state-dir=/data/gemel",
		"--arbiter=lease:" + r.Namespace + "/" + Base(p.Name), "--iscsi-listen=0.0.0.0:3260", "--control-listen=0.0.0.0:3261",
		"--metrics-listen=0.0.0.0:9260", "--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key", "--tls-ca=/tls/ca.crt",
		"--log-format=json", "--scrub-interval=0s"} // the operator starts scrubs (docs/decisions/0050)
	for _, pool := range m[node].pools {
		a = append(a, "--backing-volume="+pool.Name+"=/volumes/"+pool.Name+"/gemel")
	}
	a = append(a, tierArgs(c, m[node])...)
	if c.Spec.FullCopies {
		a = append(a, "--full-copies")
	}
	if c.Spec.Lease != nil {
		a = append(a, "--lease="+c.Spec.Lease.Duration.String())
	}
	if b := c.Spec.Balancing; b != nil && b.CPUs != nil {
		a = append(a, "--cpus="+strconv.FormatFloat(b.CPUs.AsApproximateFloat64(), 'f', -1, 64))
	}
	for _, n := range p.Spec.Nodes {
		a = append(a, "--portal="+n.Name+"="+n.Address+":3260")
		switch {
		case n.Name == "a" && node == "a":
			a = append(a, "--link-listen=0.0.0.0:3262")
		case n.Name == "a":
			a = append(a, "--link-peer="+n.Address+":3262")
		}
	}
	return a
}

// supervisorPort is where the supervisor of a node reports to the other node.
const supervisorPort = ":3263"

// supervisors are the environment of a target that give it a supervisor. They are no arguments: a
// release that spec.image names need not know them.
func supervisors(p *v1alpha1.TargetPair, node string) map[string]string {
	env := map[string]string{"GEMEL_SUPERVISOR_LISTEN": "0.0.0.0" + supervisorPort}
	for _, n := range p.Spec.Nodes {
		if n.Name != node {
			env["GEMEL_PEER_SUPERVISOR"] = n.Address + supervisorPort
		}
	}
	return env
}

func (r *Reconciler) image(c *v1alpha1.StorageCluster) string {
	if c.Spec.Image != "" {
		return c.Spec.Image
	}
	return r.Image
}

// ensureTargets applies both StatefulSets. This restarts no pod: see roll.
func (r *Reconciler) ensureTargets(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, m mounts) error {
	res, err := resources(c)
	if err != nil {
		return waiting(v1alpha1.ReasonInvalid, "%v", err)
	}
	for _, n := range p.Spec.Nodes {
		args := r.args(c, p, n.Name, m)
		var more []map[string]string
		for i, x := range m[n.Name].members {
			more = append(more, map[string]string{"Name": "member-" + strconv.Itoa(i), "Path": x.path(), "Claim": x.claim})
		}
		for _, pool := range m[n.Name].pools {
			more = append(more, map[string]string{"Name": "pool-" + pool.Name, "Path": "/volumes/" + pool.Name, "Claim": PoolClaim(p.Name, n.Name, n.Disk, pool.Name)})
		}
		data := map[string]any{"Name": NodeName(p.Name, n.Name), "Base": Base(p.Name), "Namespace": r.Namespace, "Labels": labels(p, n.Name),
			"Selector": selector(p, n.Name), "PodLabels": labels(p, n.Name), "PairSelector": selector(p, ""), "Image": r.image(c), "Args": args,
			"Claim": ClaimName(p.Name, n.Name, n.Disk), "More": more, "TLSSecret": NodeName(p.Name, n.Name), "Worker": n.Worker, "Domain": domain(c, n),
			"NodeSelector": c.Spec.NodeSelector, "Tolerations": c.Spec.Tolerations, "FailureDomainKey": c.Spec.FailureDomainKey,
			"Resources": res, "GoLimit": goLimit(res), "Supervisors": supervisors(p, n.Name), "Revision": r.revision(c, p, n, m), "Annotations": annotations(c)}
		if err := r.apply(ctx, "node.yaml", data); err != nil {
			return err
		}
		if n.Worker == "" {
			if err := r.recordWorker(ctx, c, p, n.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// revision identifies what a pod must run. It covers only what requires a restart.
func (r *Reconciler) revision(c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, n v1alpha1.PairNode, m mounts) string {
	h := sha256.New()
	res, _ := resources(c) // ensureTargets has rejected invalid ones
	text, _ := json.Marshal(res)
	fmt.Fprintf(h, "%s|%q|%d|%s|%s|%s", r.image(c), r.args(c, p, n.Name, m), n.Disk, text, goLimit(res), supervisors(p, n.Name))
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// recordWorker records the worker that the scheduler has chosen for a node.
func (r *Reconciler) recordWorker(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, node string) error {
	pod := &corev1.Pod{}
	err := r.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: PodName(p.Name, node)}, pod)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		for _, x := range pod.Status.Conditions {
			if x.Type == corev1.PodScheduled && x.Status == corev1.ConditionFalse && x.Reason == corev1.PodReasonUnschedulable {
				return unschedulable(c, p, node, x.Message)
			}
		}
		return nil
	}
	for i := range p.Spec.Nodes {
		if n := &p.Spec.Nodes[i]; n.Name == node {
			n.Worker = pod.Spec.NodeName
		}
	}
	return r.Update(ctx, p)
}
