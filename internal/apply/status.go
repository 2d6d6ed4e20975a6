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

// Status applies fields of the status of an object without a namespace, taking them over from whoever has them. Those that the manager
// applied before and leaves out now go; those of other managers stay.
func Status(ctx context.Context, c client.Client, manager string, gvk schema.GroupVersionKind, name string, fields map[string]any) error {
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
	if err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("status of %s %s: %w", strings.ToLower(gvk.Kind), name, err)
	}
	return nil
}
