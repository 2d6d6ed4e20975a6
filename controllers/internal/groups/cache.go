package groups

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Indexes of the manager's cache.
const (
	VolumeIndex = "gemel.claim"       // of PersistentVolumes: namespace/name of the claim, and the handle of a volume of Gemel
	UnitIndex   = "spec.volume.claim" // of LogicalUnits: namespace/name of the claim
)

func claimKey(namespace, name string) string { return namespace + "/" + name }

// VolumeKeys are the values of VolumeIndex. A handle has no slash.
func VolumeKeys(o client.Object) (out []string) {
	pv, ok := o.(*corev1.PersistentVolume)
	if !ok || pv.Spec.ClaimRef == nil {
		return nil
	}
	out = []string{claimKey(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)}
	if src := pv.Spec.CSI; src != nil && src.Driver == v1alpha1.DriverName {
		out = append(out, src.VolumeHandle)
	}
	return out
}

// UnitKeys are the values of UnitIndex.
func UnitKeys(o client.Object) []string {
	lu, ok := o.(*v1alpha1.LogicalUnit)
	if !ok || lu.Spec.Volume == nil || lu.Spec.Volume.PVC == "" || lu.Spec.Leg != nil { // a claim is of the striped volume
		return nil
	}
	return []string{claimKey(lu.Spec.Volume.Namespace, lu.Spec.Volume.PVC)}
}

// madeFor reports whether a LUN was requested for the claim with a UID: the provisioner names the
// volume by it.
func madeFor(lu *v1alpha1.LogicalUnit, uid types.UID) bool {
	return lu.Spec.Volume != nil && uid != "" && strings.HasSuffix(lu.Spec.Volume.Name, string(uid))
}

// Cache has the metadata of all claims of the cluster. It is apart from the manager's cache, which
// has the operator's own claims with everything in them.
type Cache struct{ cache.Cache }

// GetCache makes the manager start it and wait for it as for its own cache.
func (c Cache) GetCache() cache.Cache { return c.Cache }

// NewFinder adds the cache and the indexes to a manager.
func NewFinder(mgr ctrl.Manager) (*Finder, Cache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(), DefaultTransform: strip})
	if err != nil {
		return nil, Cache{}, err
	}
	index := mgr.GetFieldIndexer()
	err = errors.Join(index.IndexField(context.Background(), &corev1.PersistentVolume{}, VolumeIndex, VolumeKeys),
		index.IndexField(context.Background(), &v1alpha1.LogicalUnit{}, UnitIndex, UnitKeys), mgr.Add(Cache{c}))
	return &Finder{Claims: c, Objects: mgr.GetClient()}, Cache{c}, err
}

// strip removes what nothing here reads before the metadata of a claim is kept in memory.
func strip(o any) (any, error) {
	if x, ok := o.(*metav1.PartialObjectMetadata); ok {
		x.ManagedFields, x.Annotations = nil, nil
	}
	return o, nil
}
