package objects

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/placement"
)

// tokenPrefix identifies a token; it is followed by the last name of the page.
const tokenPrefix = "after/"

// page returns the part of a list after a token, which has the last name of the previous page: it
// stays valid when that object is deleted. Kubernetes' own tokens expire, and return the state at
// the first page.
func page[T any](all []T, name func(*T) string, p backend.Page) (out []T, next string, err error) {
	after, ours := strings.CutPrefix(p.After, tokenPrefix)
	if p.After != "" && (!ours || !validName.MatchString(after)) {
		return nil, "", fmt.Errorf("%w %q", backend.ErrBadToken, p.After)
	}
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(name(&a), name(&b)) })
	all = slices.DeleteFunc(all, func(t T) bool { return name(&t) <= after })
	if p.Limit > 0 && len(all) > p.Limit {
		return all[:p.Limit], tokenPrefix + name(&all[p.Limit-1]), nil
	}
	return all, "", nil
}

// ListVolumes implements backend.Backend: volumes that exist and are not being deleted.
func (b *Backend) ListVolumes(ctx context.Context, p backend.Page) ([]backend.Volume, string, error) {
	var list v1alpha1.LogicalUnitList
	if err := b.c.List(ctx, &list); err != nil {
		return nil, "", apiError("volumes", "", err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(lu v1alpha1.LogicalUnit) bool {
		return lu.Spec.Leg != nil || lu.Spec.Destroy || lu.Annotations[v1alpha1.AnnotationMade] != "true"
	})
	items, next, err := page(list.Items, func(lu *v1alpha1.LogicalUnit) string { return lu.Name }, p)
	if err != nil {
		return nil, "", err
	}
	var out []backend.Volume
	for i := range items {
		out = append(out, volume(&items[i]))
	}
	return out, next, nil
}

// ListSnapshots implements backend.Backend: snapshots that exist and are not being deleted.
func (b *Backend) ListSnapshots(ctx context.Context, source string, p backend.Page) ([]backend.Snapshot, string, error) {
	var list v1alpha1.LogicalUnitSnapshotList
	if err := b.c.List(ctx, &list); err != nil {
		return nil, "", apiError("snapshots", "", err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(s v1alpha1.LogicalUnitSnapshot) bool {
		return s.Spec.Leg != nil || s.Labels[v1alpha1.LabelClone] != "" || s.Spec.Destroy || s.Spec.Group != "" && !taken(&s) || s.Status.Size == nil || s.Status.TakenAt == nil || source != "" && s.Spec.Source != source
	})
	items, next, err := page(list.Items, func(s *v1alpha1.LogicalUnitSnapshot) string { return s.Name }, p)
	if err != nil {
		return nil, "", err
	}
	var out []backend.Snapshot
	for i := range items {
		out = append(out, snapshot(&items[i]))
	}
	return out, next, nil
}

// Capacity implements backend.Backend: the largest LUN that fits both members of one pair in a
// pool. Without a cluster no pool is known that may be restricted.
func (b *Backend) Capacity(ctx context.Context, cluster, pool string, segment map[string]string) (int64, error) {
	if cluster != "" && len(segment) > 0 {
		r, err := b.ofPool(ctx, cluster, pool)
		if err != nil {
			return 0, err
		}
		if !v1alpha1.Reached(r.terms, segment) {
			return 0, nil
		}
	}
	list, err := b.pairs(ctx)
	if err != nil {
		return 0, err
	}
	var known []placement.Pair
	for i := range list {
		known = append(known, placement.FromObject(&list[i], 0))
	}
	return placement.Largest(known, cluster, pool), nil
}

func (b *Backend) pairs(ctx context.Context) ([]v1alpha1.TargetPair, error) {
	var list v1alpha1.TargetPairList
	err := b.c.List(ctx, &list, &client.ListOptions{})
	return list.Items, apiError("TargetPairs", "", err)
}

// Health implements backend.Backend, from the conditions of the TargetPairs.
func (b *Backend) Health(ctx context.Context) (map[string]backend.Health, error) {
	list, err := b.pairs(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]backend.Health{}
	for i := range list {
		out[list[i].Name] = health(&list[i])
	}
	return out, nil
}

func health(p *v1alpha1.TargetPair) backend.Health {
	ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
	sync := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionInSync)
	switch {
	case ready == nil:
		return backend.Health{Reason: "PairUnknown", Message: "pair " + p.Name + " has no condition Ready yet: check that the operator runs"}
	case ready.Status != "True":
		return backend.Health{Reason: "PairNotServing", Message: "pair " + p.Name + ": " + ready.Message}
	case sync != nil && sync.Status != "True":
		return backend.Health{Serving: true, Reason: "RedundancyLost", Message: "pair " + p.Name + ": " + sync.Message}
	}
	return backend.Health{Serving: true}
}
