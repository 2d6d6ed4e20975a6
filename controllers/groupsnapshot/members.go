package groupsnapshot

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// ensureMembers creates the LogicalUnitSnapshots of the members. The snapshot reconciler places
// them, and takes none of them by itself.
func (p *pass) ensureMembers(ctx context.Context) error {
	confirmed := false
	for _, m := range p.o.Spec.Members {
		s, err := find(ctx, p, m.Snapshot)
		if err != nil {
			return err
		}
		if s == nil && !confirmed {
			// An operator that was deposed must not create members after the group was destroyed:
			// no object would know of them.
			if err := object.Confirm(ctx, p.Live, p.o); err != nil {
				return err
			}
			confirmed = true
		}
		if s == nil {
			if s, err = p.create(ctx, m); err != nil {
				return err
			}
		}
		if err := p.checkMember(m, s); err != nil {
			return err
		}
		p.members = append(p.members, s)
	}
	return nil
}

// find reads an object; nil if it does not exist.
func find(ctx context.Context, c client.Reader, name string) (*v1alpha1.LogicalUnitSnapshot, error) {
	s := &v1alpha1.LogicalUnitSnapshot{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, s)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("LogicalUnitSnapshot %s: %w", name, err)
	}
	return s, nil
}

func (p *pass) create(ctx context.Context, m v1alpha1.GroupSnapshotMember) (*v1alpha1.LogicalUnitSnapshot, error) {
	s := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: m.Snapshot, Labels: map[string]string{v1alpha1.LabelCluster: p.o.Spec.Cluster}},
		Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: p.o.Spec.Cluster, Source: m.Source, Name: m.Snapshot, Group: p.o.Name}}
	if s.Name == p.o.Name { // the snapshot of one striped volume
		s.Spec.Name = p.o.Spec.Name
	}
	if id := p.o.Labels[v1alpha1.LabelClone]; id != "" {
		s.Labels[v1alpha1.LabelClone] = id
	}
	return s, p.createObject(ctx, s)
}

func (p *pass) createObject(ctx context.Context, s *v1alpha1.LogicalUnitSnapshot) error {
	err := p.Create(ctx, s, client.FieldOwner(v1alpha1.OperatorManager))
	switch {
	case apierrors.IsAlreadyExists(err):
		return object.ErrStale // the cache does not have it yet
	case err != nil:
		return fmt.Errorf("create LogicalUnitSnapshot %s: %w", s.Name, err)
	}
	return nil
}

// belongs reports whether an object is that of the member, and not of something else that has its
// name.
func (p *pass) belongs(m v1alpha1.GroupSnapshotMember, s *v1alpha1.LogicalUnitSnapshot) bool {
	return s.Spec.Group == p.o.Name && s.Spec.Source == m.Source && s.Spec.Cluster == p.o.Spec.Cluster
}

func (p *pass) foreign(s *v1alpha1.LogicalUnitSnapshot) error {
	return finding.New(v1alpha1.ReasonInvalid, "spec.members: the LogicalUnitSnapshot %s exists, of source %s, group %q and cluster %s: something else has created it; delete it, or take a group snapshot of another name",
		s.Name, s.Spec.Source, s.Spec.Group, s.Spec.Cluster)
}

// checkMember checks that a member can be taken.
func (p *pass) checkMember(m v1alpha1.GroupSnapshotMember, s *v1alpha1.LogicalUnitSnapshot) error {
	switch {
	case !p.belongs(m, s):
		return p.foreign(s)
	case object.IsMade(s):
		return finding.New(v1alpha1.ReasonInvalid, "spec.members: the LogicalUnitSnapshot %s was taken before, with an earlier group snapshot of this name: delete it, or take a group snapshot of another name", s.Name)
	case s.Spec.Destroy || !s.DeletionTimestamp.IsZero():
		return finding.New(v1alpha1.ReasonInvalid, "spec.members: the LogicalUnitSnapshot %s was deleted by itself: delete the group snapshot, and take another one", s.Name)
	}
	return nil
}

// awaitPlacements waits until every member has its pair. What prevents that is shown by the
// member's condition, and here. A change of a member reconciles its group.
func awaitPlacements(list []*v1alpha1.LogicalUnitSnapshot) error {
	for _, s := range list {
		if s.Spec.Placement != nil {
			continue
		}
		if f := trouble(s); f != nil {
			return f
		}
		return finding.New(v1alpha1.ReasonProgressing, "member %s of %s is being placed", s.Name, s.Spec.Source)
	}
	return nil
}

// trouble is why a member is not Ready, unless it is only under way or the condition is outdated.
func trouble(s *v1alpha1.LogicalUnitSnapshot) *finding.Finding {
	c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.ReasonProgressing || c.ObservedGeneration < s.Generation {
		return nil
	}
	return finding.New(c.Reason, "member %s of %s: %s", s.Name, s.Spec.Source, c.Message)
}

// check looks after a group snapshot that was taken. Nothing of it is ever taken again. Members ask
// their pairs themselves, and say here what they have found.
func (p *pass) check(ctx context.Context) error {
	var worst *finding.Finding
	for _, m := range p.o.Spec.Members {
		s, err := find(ctx, p, m.Snapshot)
		if s == nil && err == nil {
			s, err = find(ctx, p.Live, m.Snapshot) // a cache can be behind
		}
		switch {
		case err != nil:
			return err
		case s == nil:
			return finding.New(v1alpha1.ReasonMissing, "the LogicalUnitSnapshot %s, of %s, no longer exists, and is not taken again, because it would be of another point in time: "+
				"if the object was lost, kubectl gemel import recreates it from the disks; otherwise delete the VolumeGroupSnapshot", m.Snapshot, m.Source)
		case !p.belongs(m, s):
			return p.foreign(s)
		}
		if f := trouble(s); f != nil && (worst == nil || worst.Reason != v1alpha1.ReasonMissing && f.Reason == v1alpha1.ReasonMissing) {
			worst = f
		}
		if at := s.Status.TakenAt; at != nil && p.o.Status.TakenAt == nil && (p.takenAt == nil || p.takenAt.Before(at)) {
			p.takenAt = at // the operator ended between the mark and its status
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}
