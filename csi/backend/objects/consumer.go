package objects

import (
	"context"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// annotationSelectedNode is the worker that the scheduler has chosen for the first pod of a claim
// whose class has the binding mode WaitForFirstConsumer.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// claimLimit bounds the reading of a claim.
const claimLimit = 2 * time.Second

// consumer is the worker that a volume is requested for; nil if none is known. Only then is the
// preferred segment that of the worker: for immediate binding the provisioner prefers the segments
// in turn, so that volumes are spread. It is a preference, so a claim that cannot be read is only
// logged.
func (b *Backend) consumer(ctx context.Context, req backend.CreateVolume) *v1alpha1.Consumer {
	key := client.ObjectKey{Namespace: req.Labels[v1alpha1.DiskLabelNamespace], Name: req.Labels[v1alpha1.DiskLabelPVC]}
	if key.Namespace == "" || key.Name == "" {
		return nil // requested without Kubernetes, or the provisioner runs without --extra-create-metadata
	}
	log := b.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	log = log.With("volume", req.Name, "namespace", key.Namespace, "claim", key.Name)
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	var claim corev1.PersistentVolumeClaim
	if err := b.c.Get(ctx, key, &claim); err != nil {
		log.Warn("cannot read the claim of a new volume: the volume is placed without regard to its consumer", "err", err)
		return nil
	}
	worker := claim.Annotations[annotationSelectedNode]
	if worker == "" {
		return nil
	}
	if errs := validation.IsDNS1123Subdomain(worker); len(errs) > 0 {
		log.Warn("the annotation "+annotationSelectedNode+" of a claim is not the name of a node: the volume is placed without regard to its consumer",
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
