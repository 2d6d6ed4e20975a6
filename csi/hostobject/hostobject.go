// Package hostobject tells the cluster of this worker: the node plugin writes its own Host object, and no other one.
package hostobject

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/apply"
)

// Worker is what there is to tell.
type Worker struct {
	Node       string // name of the Kubernetes node, and of the object
	IQN        string
	MachineID  string
	AttachMode string // Kernel or Userspace
	Why        string // that mode
	Version    string // of the plugin
	// Ready says why the plugin cannot attach, nil when it can. Attached counts the LUNs that the worker holds.
	Ready    func() error
	Attached func() (int, error)
	// Paths are those of all attachments; nil where nobody tells. Changed says that they may not be as they were.
	Paths   func(context.Context) ([]attach.Status, error)
	Changed <-chan struct{}
}

var kind = v1alpha1.GroupVersion.WithKind("Host")

// Write applies the object as it is to be, with the field manager of the driver: the operator's fields stay. The object goes with
// its Kubernetes node.
func Write(ctx context.Context, c client.Client, w Worker) error {
	var node corev1.Node
	if err := c.Get(ctx, client.ObjectKey{Name: w.Node}, &node); err != nil {
		return fmt.Errorf("node %s: %w: --node-name has to be that of the Kubernetes node", w.Node, err)
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	o.SetName(w.Node)
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}})
	spec := map[string]any{"iqn": w.IQN, "attachMode": w.AttachMode}
	if w.MachineID != "" {
		spec["machineID"] = w.MachineID
	}
	if t := topology(node.Labels); len(t) > 0 {
		spec["topology"] = t
	}
	o.Object["spec"] = spec
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(v1alpha1.DriverManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("host %s: %w", w.Node, err)
	}
	return writeStatus(ctx, c, w)
}

// topology are the labels that say where the worker is, at most as many as the object takes.
func topology(labels map[string]string) map[string]any {
	out := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if (strings.HasPrefix(k, "topology.kubernetes.io/") || k == corev1.LabelHostname) && len(out) < 16 {
			out[k] = labels[k]
		}
	}
	return out
}

// writeStatus applies the worker's part of the status if it differs from what is there.
func writeStatus(ctx context.Context, c client.Client, w Worker) error {
	var now v1alpha1.Host
	if err := c.Get(ctx, client.ObjectKey{Name: w.Node}, &now); err != nil {
		return fmt.Errorf("host %s: %w", w.Node, err)
	}
	want := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady,
		Message: "the node plugin runs and can attach LUNs", ObservedGeneration: now.Generation}
	if err := w.Ready(); err != nil {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, v1alpha1.ReasonNotSupported, err.Error()
	}
	want.Message += " (" + w.AttachMode + ": " + w.Why + ")"
	attached, err := w.Attached()
	if err != nil {
		return fmt.Errorf("attached LUNs: %w", err)
	}
	var seen []v1alpha1.HostPaths
	if w.Paths != nil {
		all, err := w.Paths(ctx)
		if err != nil {
			return fmt.Errorf("paths: %w", err)
		}
		seen = byTarget(all)
	}
	conditions := slices.Clone(now.Status.Conditions)
	if !meta.SetStatusCondition(&conditions, want) && now.Status.Attached == int32(attached) && now.Status.Version == w.Version &&
		now.Status.ObservedGeneration == now.Generation && equality.Semantic.DeepEqual(now.Status.Worker, seen) {
		return nil
	}
	part := map[string]any{"observedGeneration": now.Generation, "attached": attached, "version": w.Version,
		"conditions": []metav1.Condition{*meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)}}
	if len(seen) > 0 {
		part["worker"] = seen
	}
	return apply.Status(ctx, c, v1alpha1.DriverManager, kind, w.Node, part)
}

const (
	retry   = 5 * time.Second // after a write that failed
	refresh = time.Minute     // of the status, written only when it differs
	rest    = 5 * time.Second // between two looks
)

// Keep writes the object now and keeps its status fresh until the context ends: when paths may have changed, and once in a while. I/O does not
// depend on it, so an API server that is away is waited for.
func Keep(ctx context.Context, c client.Client, w Worker, log *slog.Logger) {
	for {
		once, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := Write(once, c, w)
		cancel()
		pause := refresh
		if err != nil && ctx.Err() == nil {
			pause = retry
			if apierrors.IsForbidden(err) {
				pause = refresh // a matter of roles: no hurry
			}
			log.Warn("the Host object could not be written", "host", w.Node, "err", err)
		}
		// What changes a lot is not written at every turn.
		least := time.After(rest)
		select {
		case <-time.After(pause):
		case <-w.Changed:
			select {
			case <-least:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
