// Package hostobject writes the Host object of this worker from the node plugin.
package hostobject

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

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

// Worker is the content of the Host object.
type Worker struct {
	Node       string // name of the Kubernetes node, and of the object
	IQN        string
	MachineID  string
	AttachMode string // Kernel or Userspace
	Why        string // reason for the mode
	Version    string // of the plugin
	// Ready returns why the plugin cannot attach, nil if it can. Attached returns the number of
	// attached LUNs, of which MaxLUNs can be.
	Ready    func() error
	Attached func() (int, error)
	MaxLUNs  int64
	// Paths returns the paths of all attachments; may be nil. Changed signals that they may have
	// changed.
	Paths   func(context.Context) ([]attach.Status, error)
	Changed <-chan struct{}
}

var kind = v1alpha1.GroupVersion.WithKind("Host")

// Write applies the object with the field manager of the driver: the operator's fields stay. The
// object is owned by its Kubernetes node.
func Write(ctx context.Context, c client.Client, w Worker) error {
	node, err := readNode(ctx, c, w.Node)
	if err != nil {
		return err
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	o.SetName(w.Node)
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}})
	spec := map[string]any{"iqn": w.IQN, "attachMode": w.AttachMode}
	if w.MachineID != "" {
		spec["machineID"] = w.MachineID
	}
	if w.MaxLUNs > 0 {
		spec["maxLUNs"] = w.MaxLUNs
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

// writeStatus applies the worker's part of the status if it has changed.
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
	retry   = 5 * time.Second // after a failed write
	refresh = time.Minute     // of the status, written only if it has changed
	rest    = 5 * time.Second // minimum between two updates
)

// Keep writes the object and updates its status until the context ends: when paths may have
// changed, and periodically. I/O does not depend on it, so it waits for an unavailable API server.
func Keep(ctx context.Context, c client.Client, w Worker, log *slog.Logger) {
	for {
		once, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := Write(once, c, w)
		cancel()
		pause := refresh
		if err != nil && ctx.Err() == nil {
			pause = retry
			if apierrors.IsForbidden(err) {
				pause = refresh // an RBAC problem: retry slowly
			}
			log.Warn("cannot write the Host object", "host", w.Node, "err", err)
		}
		// Limit the rate of writes when paths change often.
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
