package hostobject

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/csi/identity"
)

// MaxKeys is how many keys an administrator may add to the segments of workers. Each combination of
// values is one CSIStorageCapacity object for each StorageClass.
const MaxKeys = 16

// maxTopology is how many labels a Host holds.
const maxTopology = 16

// CheckKeys checks the keys that an administrator adds to the segments of workers. The error names
// the key and the fix.
func CheckKeys(keys []string) error {
	if len(keys) > MaxKeys {
		return fmt.Errorf("%d keys: at most %d are allowed: name fewer", len(keys), MaxKeys)
	}
	seen := map[string]bool{}
	for _, k := range keys {
		lower := strings.ToLower(k) // "Keys MUST be case-insensitive" (CSI, Topology)
		switch errs := validation.IsQualifiedName(k); {
		case len(errs) > 0:
			return fmt.Errorf("%q is not the key of a label: %s", k, strings.Join(errs, "; "))
		case lower == corev1.LabelHostname:
			return fmt.Errorf("%s makes a segment of its own for every worker, and a CSIStorageCapacity object for every worker and StorageClass: remove it", k)
		case strings.HasPrefix(lower, identity.DriverName+"/"):
			return fmt.Errorf("%s belongs to the driver: remove it", k)
		case seen[lower]:
			return fmt.Errorf("%s is named twice (capitals make no difference): remove one", k)
		}
		seen[lower] = true
	}
	return nil
}

// Segments are the topology labels of a worker that the driver reports: zone, region, and keys. A
// label that the worker does not have, or that is empty, is left out.
func Segments(ctx context.Context, c client.Reader, worker string, keys []string) (map[string]string, error) {
	node, err := readNode(ctx, c, worker)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, k := range append([]string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion}, keys...) {
		if v := node.Labels[k]; v != "" {
			out[k] = v
		}
	}
	return out, nil
}

func readNode(ctx context.Context, c client.Reader, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, fmt.Errorf("get node %s: %w: check that --node-name is the name of the Kubernetes node", name, err)
	}
	return node, nil
}

// topology are the topology labels of the worker, up to the maximum of the object.
func topology(labels map[string]string) map[string]any {
	out := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if (strings.HasPrefix(k, "topology.kubernetes.io/") || k == corev1.LabelHostname) && len(out) < maxTopology {
			out[k] = labels[k]
		}
	}
	return out
}
