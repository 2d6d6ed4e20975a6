package objects

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// annotationSelectedNode is the worker that the scheduler has chosen for the first pod of a claim
// whose class has the binding mode WaitForFirstConsumer.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// readLimit bounds the reading of one object that a new volume depends on.
const readLimit = 2 * time.Second

// claim that a volume is requested for; nil if it is not known, or does not exist. A claim that
// cannot be read is an error if its class may restrict the volume, and otherwise only logged: what
// is left is a preference.
func (b *Backend) claim(ctx context.Context, req backend.CreateVolume) (*corev1.PersistentVolumeClaim, error) {
	key := client.ObjectKey{Namespace: req.Labels[v1alpha1.DiskLabelNamespace], Name: req.Labels[v1alpha1.DiskLabelPVC]}
	if key.Namespace == "" || key.Name == "" {
		return nil, nil // requested without Kubernetes, or the provisioner runs without --extra-create-metadata
	}
	var claim corev1.PersistentVolumeClaim
	err := b.read(ctx, key, &claim)
	switch {
	case err == nil:
		return &claim, nil
	case len(req.Requisite) > 0 && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("create volume %s: the claim cannot be read, so it is unknown which workers its StorageClass allows: %w", req.ID, apiError("claim", key.String(), err))
	}
	b.log(req).Warn("cannot read the claim of a new volume: the volume is placed without regard to its consumer", "err", err)
	return nil, nil
}

// log of a request.
func (b *Backend) log(req backend.CreateVolume) *slog.Logger {
	return b.logger().With("volume", req.Name, "namespace", req.Labels[v1alpha1.DiskLabelNamespace], "claim", req.Labels[v1alpha1.DiskLabelPVC])
}

// consumer is the worker that a volume is requested for; nil if none is known. Only then is the
// preferred segment that of the worker: for immediate binding the provisioner prefers the segments
// in turn, so that volumes are spread.
func (b *Backend) consumer(req backend.CreateVolume, claim *corev1.PersistentVolumeClaim) *v1alpha1.Consumer {
	if claim == nil {
		return nil
	}
	worker := claim.Annotations[annotationSelectedNode]
	if worker == "" {
		return nil
	}
	if errs := validation.IsDNS1123Subdomain(worker); len(errs) > 0 {
		b.log(req).Warn("the annotation "+annotationSelectedNode+" of a claim is not the name of a node: the volume is placed without regard to its consumer",
			"err", strings.Join(errs, "; "))
		return nil
	}
	out := &v1alpha1.Consumer{Worker: worker}
	for k, v := range req.Preferred {
		if out.Topology == nil {
			out.Topology = map[string]v1alpha1.TopologyValue{}
		}
		out.Topology[k] = v1alpha1.TopologyValue(v)
	}
	return out
}
