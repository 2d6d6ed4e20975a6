package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	wholejson "k8s.io/apimachinery/pkg/util/json" // numbers without a fraction stay integers
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PatchStatus writes what differs between before and the status of an object, if the object was not
// written since it was read: a summary of what was there a moment ago, by an operator that is no
// longer the leader or whose cache is behind, must not stay as the last word. Then the error is a
// conflict, and what was looked at is to be looked at again. An object that has gone needs no
// status.
func PatchStatus(ctx context.Context, c client.Client, o, before client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return client.IgnoreNotFound(c.Status().Patch(ctx, o, patch))
}

// Status applies fields of the status of an object without a namespace, taking them over from the
// managers that have them. Those that the manager applied before and leaves out now go; those of
// other managers stay.
func Status(ctx context.Context, c client.Client, manager string, gvk schema.GroupVersionKind, name string, fields map[string]any) error {
	return StatusAt(ctx, c, manager, gvk, name, "", fields)
}

// StatusAt is Status for an object that was read at a resource version: a conflict if it has
// changed since.
func StatusAt(ctx context.Context, c client.Client, manager string, gvk schema.GroupVersionKind, name, version string, fields map[string]any) error {
	raw, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	if err := wholejson.Unmarshal(raw, &u.Object); err != nil {
		return err
	}
	u.SetGroupVersionKind(gvk)
	u.SetName(name)
	if version != "" {
		u.SetResourceVersion(version)
	}
	if err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("status of %s %s: %w", strings.ToLower(gvk.Kind), name, err)
	}
	return nil
}
