package groupsnapshot

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/snapshot"
)

// destroy removes the group snapshot from its pairs, then the objects of the members, which take
// those of their legs with them, then the finalizer. The pairs come first: the members' objects say
// which pairs have something, and a pair that has logged the end makes nothing of the group any
// more, whatever a slow coordinator asks. Every step can be repeated, so a crash anywhere is
// followed by the same steps.
func (p *pass) destroy(ctx context.Context) error {
	if err := object.Confirm(ctx, p.Live, p.o); err != nil {
		return err
	}
	if err := p.readMembers(ctx); err != nil {
		return err
	}
	if err := p.end(ctx); err != nil {
		return err
	}
	for i := range p.members {
		if err := snapshot.Remove(ctx, p, &p.members[i]); err != nil {
			return err
		}
	}
	if n := len(p.members); n > 0 {
		p.after = p.again()
		return finding.New(v1alpha1.ReasonProgressing, "%d LogicalUnitSnapshots are being removed", n)
	}
	err := object.RemoveFinalizer(ctx, p, &p.o)
	groups.WithLabelValues("removed").Inc()
	return err
}

// readMembers reads the members that exist, without the cache. What only has the name of one is
// left alone.
func (p *pass) readMembers(ctx context.Context) error {
	for _, m := range p.o.Spec.Members {
		s, err := find(ctx, p.Live, m.Snapshot)
		if err != nil {
			return err
		}
		if s == nil || !p.belongs(m, s) {
			continue
		}
		p.members = append(p.members, s)
		if s.Spec.Striped == nil {
			p.luns = append(p.luns, s)
			continue
		}
		for i := range int(s.Spec.Striped.LUNs) { // those that are gone have nothing at their pairs
			leg, err := find(ctx, p.Live, v1alpha1.LegName(s.Name, i))
			if err != nil {
				return err
			}
			if leg != nil && snapshot.IsLeg(s, leg) {
				p.luns = append(p.luns, leg)
			}
		}
	}
	return nil
}

// end logs the last attempt at every pair that a member is placed on. Pairs that no member was ever
// placed on have nothing. Nor has any, if no attempt was begun: a coordinator that begins one has
// to write the object first, which it read before the deletion.
func (p *pass) end(ctx context.Context) error {
	var now v1alpha1.LogicalUnitGroupSnapshot
	if err := p.Live.Get(ctx, client.ObjectKeyFromObject(p.o), &now); err != nil {
		return fmt.Errorf("LogicalUnitGroupSnapshot %s: %w", p.o.Name, err)
	}
	if now.UID == p.o.UID && now.Status.Attempt == 0 && !p.made() {
		return nil
	}
	if err := p.connect(ctx); err != nil {
		return err
	}
	return failure(p.group.End(ctx, uint64(now.Status.Attempt)), false)
}
