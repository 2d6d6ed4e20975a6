package groups

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Namespace is the groups of a namespace with a valid selector, by name.
type Namespace []selected

type selected struct {
	group    *v1alpha1.ConsistencyGroup
	selector labels.Selector
}

// InNamespace returns the groups of a namespace. A group that is being deleted, or whose selector
// is invalid, selects nothing. The groups belong to the cache and must not be changed: a status is
// large, and this is asked for every event of a claim.
func (f *Finder) InNamespace(ctx context.Context, namespace string) (out Namespace, err error) {
	list := &v1alpha1.ConsistencyGroupList{}
	if err := f.Objects.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("ConsistencyGroups of namespace %s: %w", namespace, err)
	}
	for i := range list.Items {
		g := &list.Items[i]
		if s, err := Selector(g); err == nil && g.DeletionTimestamp.IsZero() {
			out = append(out, selected{g, s})
		}
	}
	slices.SortFunc(out, func(a, b selected) int { return cmp.Compare(a.group.Name, b.group.Name) })
	return out, nil
}

// Matching are the groups that select a claim with these labels.
func (n Namespace) Matching(l labels.Set) (out []*v1alpha1.ConsistencyGroup) {
	for _, x := range n {
		if x.selector.Matches(l) {
			out = append(out, x.group)
		}
	}
	return out
}

// All are the groups.
func (n Namespace) All() (out []*v1alpha1.ConsistencyGroup) {
	for _, x := range n {
		out = append(out, x.group)
	}
	return out
}
