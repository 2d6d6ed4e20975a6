package objects

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// read gets an object within a limit.
func (b *Backend) read(ctx context.Context, key client.ObjectKey, o client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return b.c.Get(ctx, key, o)
}

// restrictUnit sets the workers that a new volume in a pool is for. If it cannot say, or the worker
// of the request is not among them, but an earlier call has left an object, the volume becomes as
// that call said: the error would be final to the caller, who would never delete it.
func (b *Backend) restrictUnit(ctx context.Context, want *v1alpha1.LogicalUnit, req backend.CreateVolume, pool string, claim *corev1.PersistentVolumeClaim) error {
	r, err := b.restrict(ctx, req, pool, claim, want.Spec.Consumer)
	if err != nil {
		old, missing := b.unit(ctx, want.Name)
		if missing != nil || old.Spec.Destroy {
			return fmt.Errorf("create volume %s: %w", want.Name, err)
		}
		r = restriction{terms: old.Spec.AccessibleFrom, by: old.Annotations[v1alpha1.AnnotationRestricted]}
	}
	if len(r.terms) > 0 {
		want.Spec.AccessibleFrom = r.terms
		want.Annotations = map[string]string{v1alpha1.AnnotationRestricted: r.by}
	}
	return nil
}

// restrict combines the restrictions of the pool and of the claim's class.
func (b *Backend) restrict(ctx context.Context, req backend.CreateVolume, pool string, claim *corev1.PersistentVolumeClaim, consumer *v1alpha1.Consumer) (restriction, error) {
	ofPool, err := b.ofPool(ctx, req.Cluster, pool)
	if err != nil {
		return restriction{}, err
	}
	ofClass, err := b.ofClass(ctx, req, claim)
	if err != nil {
		return restriction{}, err
	}
	r, err := combine(ofPool, ofClass)
	if err != nil || len(r.terms) == 0 {
		return restriction{}, err
	}
	if err := r.check(); err != nil {
		return restriction{}, err
	}
	if consumer != nil {
		return r, b.ofConsumer(ctx, r, consumer.Worker)
	}
	return r, b.ofSegments(ctx, r, req.Requisite)
}

// ofPool is the restriction of a pool; none if the pool or the StorageCluster does not exist.
func (b *Backend) ofPool(ctx context.Context, cluster, pool string) (restriction, error) {
	var c v1alpha1.StorageCluster
	if err := b.read(ctx, client.ObjectKey{Name: cluster}, &c); err != nil {
		return restriction{}, apiError("StorageCluster", cluster, client.IgnoreNotFound(err))
	}
	p := c.Spec.Pool(pool)
	if p == nil || len(p.AccessibleFrom) == 0 {
		return restriction{}, nil
	}
	return restriction{p.AccessibleFrom, fmt.Sprintf("pool %s of StorageCluster %s (spec.pools[].accessibleFrom)", p.Name, cluster)}, nil
}

// ofClass is the restriction of the claim's StorageClass. The request alone does not tell: without
// allowedTopologies the provisioner names the segments of all workers in the same field.
func (b *Backend) ofClass(ctx context.Context, req backend.CreateVolume, claim *corev1.PersistentVolumeClaim) (restriction, error) {
	if claim == nil || len(req.Requisite) == 0 {
		return restriction{}, nil
	}
	name := classOf(claim)
	if name == "" {
		return restriction{}, nil
	}
	var class storagev1.StorageClass
	switch err := b.read(ctx, client.ObjectKey{Name: name}, &class); {
	case apierrors.IsNotFound(err):
		return restriction{}, fmt.Errorf("%w: StorageClass %s of claim %s/%s does not exist, so it is unknown which workers it allows: create it again, or delete the claim",
			backend.ErrUnavailable, name, claim.Namespace, claim.Name)
	case err != nil:
		return restriction{}, apiError("StorageClass", name, err)
	}
	terms, err := flatten(class.AllowedTopologies)
	if err != nil {
		return restriction{}, fmt.Errorf("StorageClass %s: %w", name, err)
	}
	return restriction{terms, "StorageClass " + name + " (allowedTopologies)"}, nil
}

// classOf a claim; the annotation comes first, as in Kubernetes.
func classOf(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// ofConsumer checks the worker of the first pod by the labels that it has, which are those that the
// scheduler compares with the node affinity.
func (b *Backend) ofConsumer(ctx context.Context, r restriction, worker string) error {
	var node corev1.Node
	switch err := b.read(ctx, client.ObjectKey{Name: worker}, &node); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: worker %s does not exist, and %s is for some workers only", backend.ErrUnreachable, worker, r.by)
	case err != nil:
		return apiError("node", worker, err)
	case v1alpha1.Reached(r.terms, node.Labels):
		return nil
	}
	return fmt.Errorf("%w: worker %s does not have the labels %s, which %s requires: let the pod run on another worker, or label this one if it reaches the pairs",
		backend.ErrUnreachable, worker, v1alpha1.TermsText(r.terms), r.by)
}

// ofSegments checks the segments of a request without a consumer. If they lack labels of the terms,
// the workers are asked: the provisioner may have asked one that reports fewer labels than others.
func (b *Backend) ofSegments(ctx context.Context, r restriction, segments []map[string]string) error {
	if len(segments) == 0 {
		return nil
	}
	switch r.fits(segments) {
	case certain:
		return nil
	case apart:
		return fmt.Errorf("%w: no segment of accessibility_requirements.requisite has the labels %s, which %s requires: label the workers that reach the pairs, and restart their node plugin",
			backend.ErrUnreachable, v1alpha1.TermsText(r.terms), r.by)
	}
	for _, t := range r.terms {
		var nodes corev1.NodeList
		if err := b.c.List(ctx, &nodes, client.MatchingLabels(t.Labels()), client.Limit(1)); err != nil {
			return apiError("nodes", "", err)
		}
		if len(nodes.Items) > 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: no worker has the labels %s, which %s requires: label the workers that reach the pairs, name keys other than zone and region in --topology-keys of the node plugin (chart: node.topologyKeys), and restart it",
		backend.ErrUnreachable, v1alpha1.TermsText(r.terms), r.by)
}
