package snapshot

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// A snapshot of a group is not taken here, which would be at an instant of its own. The reconciler
// of groups takes all of them, and publishes the group; only then is what the pair has theirs.

// group reads the LogicalUnitGroupSnapshot that the snapshot is of; nil if it does not exist.
func (p *pass) group(ctx context.Context, from client.Reader) (*v1alpha1.LogicalUnitGroupSnapshot, error) {
	g := &v1alpha1.LogicalUnitGroupSnapshot{}
	err := from.Get(ctx, client.ObjectKey{Name: p.o.Spec.Group}, g)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("LogicalUnitGroupSnapshot %s: %w", p.o.Spec.Group, err)
	}
	return g, nil
}

func (p *pass) memberOf(g *v1alpha1.LogicalUnitGroupSnapshot) bool {
	if l := p.o.Spec.Leg; l != nil {
		return slices.ContainsFunc(g.Spec.Members, func(m v1alpha1.GroupSnapshotMember) bool { return m.Snapshot == l.Of })
	}
	return slices.Contains(g.Spec.Members, v1alpha1.GroupSnapshotMember{Source: p.o.Spec.Source, Snapshot: p.o.Name})
}

// awaitGroup waits until the group of the snapshot is published. Before that the pair may have a
// snapshot of an attempt that fails.
func (p *pass) awaitGroup(ctx context.Context) error {
	if p.o.Spec.Group == "" || p.made() {
		return nil
	}
	g, err := p.group(ctx, p)
	if g == nil && err == nil {
		g, err = p.group(ctx, p.Live) // a cache can be behind
	}
	switch {
	case err != nil:
		return err
	case g == nil:
		return finding.New(v1alpha1.ReasonNoSource, "LogicalUnitGroupSnapshot %s, with which this snapshot is taken, does not exist: set spec.destroy and delete the object", p.o.Spec.Group)
	case !p.memberOf(g):
		return finding.New(v1alpha1.ReasonInvalid, "spec.group: LogicalUnitGroupSnapshot %s does not have this snapshot of %s: set spec.destroy and delete the object", g.Name, p.o.Spec.Source)
	case !object.IsMade(g):
		return finding.New(v1alpha1.ReasonProgressing, "the snapshot is taken with the group snapshot %s", g.Name)
	}
	return nil
}

// heldByGroup refuses to destroy one snapshot of a group by itself: the rest would be a group
// snapshot that is not whole.
func (p *pass) heldByGroup(ctx context.Context) error {
	if p.o.Spec.Group == "" {
		return nil
	}
	g, err := p.group(ctx, p.Live)
	switch {
	case err != nil:
		return err
	case g == nil || !p.memberOf(g), g.Spec.Destroy && !g.DeletionTimestamp.IsZero():
		return nil
	}
	return finding.New(v1alpha1.ReasonInUse, "the snapshot is part of the group snapshot %s, and is destroyed with it: delete the VolumeGroupSnapshot", g.Name)
}

// membersOf are the snapshots of a group, and those of their legs.
func (r *Reconciler) membersOf(ctx context.Context, o client.Object) (out []reconcile.Request) {
	g, ok := o.(*v1alpha1.LogicalUnitGroupSnapshot)
	if !ok {
		return nil
	}
	for _, m := range g.Spec.Members {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: m.Snapshot}})
		whole := &v1alpha1.LogicalUnitSnapshot{}
		if err := r.Get(ctx, client.ObjectKey{Name: m.Snapshot}, whole); err != nil || whole.Spec.Striped == nil {
			continue // one that the cache lacks is reconciled when it has it
		}
		for i := range int(whole.Spec.Striped.LUNs) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: v1alpha1.LegName(m.Snapshot, i)}})
		}
	}
	return out
}
