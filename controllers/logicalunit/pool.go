package logicalunit

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
)

// cluster is the spec of the StorageCluster, empty if it does not exist: its pairs continue without
// it. It is read again without the cache if the cache lacks the pool, which may be new.
func (p *pass) cluster(ctx context.Context) (*v1alpha1.StorageClusterSpec, error) {
	c := &v1alpha1.StorageCluster{}
	key := client.ObjectKey{Name: p.lu.Spec.Cluster}
	err := p.Get(ctx, key, c)
	if err == nil && c.Spec.Pool(p.lu.Spec.Pool) == nil || apierrors.IsNotFound(err) {
		err = p.Live.Get(ctx, key, c)
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("StorageCluster %s: %w", key.Name, err)
	}
	return &c.Spec, nil
}

// pool of the LUN: the pool of the spec, of the source, or the first one. Without a StorageCluster
// it is empty, which is the first pool as well.
func (p *pass) pool(spec *v1alpha1.StorageClusterSpec, s source) (string, error) {
	want := p.lu.Spec.Pool
	switch copied := p.lu.Spec.Source != nil; {
	case len(spec.Pools) == 0 && want == "":
		return s.pool, nil
	case len(spec.Pools) == 0:
		return "", finding.New(v1alpha1.ReasonInvalid, "spec.cluster: StorageCluster %s does not exist, so its pool %s is unknown: create the StorageCluster", p.lu.Spec.Cluster, want)
	case copied && want != "" && spec.PoolName(want) != spec.PoolName(s.pool):
		return "", finding.New(v1alpha1.ReasonInvalid, "spec.pool: a copy shares extents with its source and must be in the pool of the source, which is %s, not %s: "+
			"name that pool or no pool in the StorageClass (parameters.%s), or create an empty volume and copy the data", spec.PoolName(s.pool), want, v1alpha1.ParamPool)
	case copied:
		return spec.PoolName(s.pool), nil
	case spec.Pool(want) == nil:
		return "", finding.New(v1alpha1.ReasonInvalid, "spec.pool: StorageCluster %s has no pool %s; its pools are %s: add the pool to the StorageCluster, or name one of its pools in the StorageClass (parameters.%s)",
			p.lu.Spec.Cluster, want, spec.PoolNames(), v1alpha1.ParamPool)
	}
	return spec.PoolName(want), nil
}

// volume is the pair's name of the backing volume of the LUN's pool; empty for the first one, as in
// every release of the target.
func (p *pass) volume(ctx context.Context) (string, error) {
	pool := p.lu.Spec.Placement.Pool
	if pool == "" {
		return "", nil
	}
	spec, err := p.cluster(ctx)
	if err != nil {
		return "", err
	}
	if spec.Pool(pool) == nil {
		return "", finding.Wait(v1alpha1.ReasonInvalid, "spec.placement.pool: StorageCluster %s has no pool %s: add the pool again", p.lu.Spec.Cluster, pool)
	}
	if v := spec.Volume(pool); v != v1alpha1.DefaultVolume {
		return v, nil
	}
	return "", nil
}
