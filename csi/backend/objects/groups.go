package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// A group snapshot is one LogicalUnitGroupSnapshot, whose members are frozen when it is created.
// The operator creates the LogicalUnitSnapshots of its members, takes them at one instant, and
// removes them before the object goes. So every call writes one object, and a process that crashes
// between two calls leaves nothing that the repeated call does not find.

// GroupSnapshots implements backend.Backend.
func (b *Backend) GroupSnapshots() bool { return true }

// GroupSnapshotID implements backend.Backend.
func (b *Backend) GroupSnapshotID(name string) string { return "group-" + hash("group/"+name) }

// membersOf names the snapshots of a new group snapshot. The order is that of the sources' names,
// so that a repeated request has the same members, however it lists its sources.
func membersOf(id string, sources []string) (out []v1alpha1.GroupSnapshotMember) {
	for i, source := range slices.Sorted(slices.Values(sources)) {
		out = append(out, v1alpha1.GroupSnapshotMember{Source: source, Snapshot: fmt.Sprintf("%s-%d", id, i)})
	}
	return out
}

func (b *Backend) readGroup(ctx context.Context, id string) (*v1alpha1.LogicalUnitGroupSnapshot, error) {
	if !validName.MatchString(id) {
		return nil, notFound("group snapshot", id)
	}
	var g v1alpha1.LogicalUnitGroupSnapshot
	if err := b.c.Get(ctx, client.ObjectKey{Name: id}, &g); err != nil {
		return nil, apiError("group snapshot", id, err)
	}
	return &g, nil
}

// groupTaken reports whether the operator has published the group snapshot. The annotation stays
// when the object is not Ready for a while.
func groupTaken(g *v1alpha1.LogicalUnitGroupSnapshot) bool {
	return g.Annotations[v1alpha1.AnnotationMade] == "true" || meta.IsStatusConditionTrue(g.Status.Conditions, v1alpha1.ConditionReady)
}

// group reads the snapshots of a group snapshot that was taken. ErrUnavailable if the operator has
// not published them all yet.
func (b *Backend) group(ctx context.Context, g *v1alpha1.LogicalUnitGroupSnapshot) (backend.GroupSnapshot, error) {
	if g.Status.TakenAt == nil {
		return backend.GroupSnapshot{}, fmt.Errorf("%w: the LogicalUnitGroupSnapshot %q has no status yet: retry", backend.ErrUnavailable, g.Name)
	}
	out := backend.GroupSnapshot{ID: g.Name, Name: g.Spec.Name, Created: g.Status.TakenAt.Time}
	for _, m := range g.Spec.Members {
		s, err := b.takenSnapshot(ctx, m.Snapshot)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			return backend.GroupSnapshot{}, fmt.Errorf("%w: group snapshot %q lacks the snapshot of volume %s: %s", backend.ErrUnavailable, g.Name, m.Source, err)
		case err != nil:
			return backend.GroupSnapshot{}, err
		case s.Spec.Group != g.Name || s.Spec.Source != m.Source:
			return backend.GroupSnapshot{}, fmt.Errorf("group snapshot %q: the LogicalUnitSnapshot %s is not of it and of volume %s: something else has created it", g.Name, s.Name, m.Source)
		}
		out.Snapshots = append(out.Snapshots, snapshot(s))
	}
	return out, nil
}

// GetGroupSnapshot implements backend.Backend.
func (b *Backend) GetGroupSnapshot(ctx context.Context, id string) (backend.GroupSnapshot, error) {
	g, err := b.readGroup(ctx, id)
	switch {
	case err != nil:
		return backend.GroupSnapshot{}, err
	case g.Spec.Destroy:
		return backend.GroupSnapshot{}, fmt.Errorf("%w: group snapshot %q is being deleted", backend.ErrNotFound, id)
	case !groupTaken(g):
		return backend.GroupSnapshot{}, fmt.Errorf("%w: group snapshot %q is not taken yet", backend.ErrNotFound, id)
	}
	return b.group(ctx, g)
}

// CreateGroupSnapshot implements backend.Backend. As for snapshots, an object that fails is
// removed, and with it what the operator has of its snapshots.
func (b *Backend) CreateGroupSnapshot(ctx context.Context, id, name string, sources []string) (backend.GroupSnapshot, error) {
	return b.createGroup(ctx, id, name, membersOf(id, sources))
}

func (b *Backend) createGroup(ctx context.Context, id, name string, members []v1alpha1.GroupSnapshotMember) (backend.GroupSnapshot, error) {
	what := "create group snapshot " + id
	for {
		g, err := b.ensureGroup(ctx, id, name, members)
		if err != nil {
			return backend.GroupSnapshot{}, err
		}
		var seen *v1alpha1.LogicalUnitGroupSnapshot
		err = waitGroup(ctx, b, what, g, func(now *v1alpha1.LogicalUnitGroupSnapshot) (bool, error) {
			seen = now
			return groupTaken(now), verdict(what, failed(now.Status.Conditions, v1alpha1.ConditionReady, now.Generation))
		})
		switch {
		case errors.Is(err, errGone):
			continue // an earlier object was being deleted
		case errors.Is(err, backend.ErrTimeout):
			return backend.GroupSnapshot{}, err
		case err != nil:
			b.removeFailedGroup(context.WithoutCancel(ctx), seen)
			return backend.GroupSnapshot{}, err
		}
		return b.published(ctx, what, seen)
	}
}

// published returns the snapshots of a group that is Ready. The operator writes the object of the
// group and those of its members one after the other, in an order that is not known here.
func (b *Backend) published(ctx context.Context, what string, g *v1alpha1.LogicalUnitGroupSnapshot) (backend.GroupSnapshot, error) {
	for {
		out, err := b.group(ctx, g)
		if !errors.Is(err, backend.ErrUnavailable) {
			return out, err
		}
		if ended := sleep(ctx, watchPause); ended != nil {
			return backend.GroupSnapshot{}, fmt.Errorf("%s: %w: %w; last seen: %s", what, backend.ErrTimeout, ended, err)
		}
		now, err := b.readGroup(ctx, g.Name)
		switch {
		case err == nil:
			g = now
		case !errors.Is(err, backend.ErrUnavailable):
			return backend.GroupSnapshot{}, err
		}
	}
}

// waitGroup calls wait for a LogicalUnitGroupSnapshot.
func waitGroup(ctx context.Context, b *Backend, what string, g *v1alpha1.LogicalUnitGroupSnapshot, done func(*v1alpha1.LogicalUnitGroupSnapshot) (bool, error)) error {
	return wait(ctx, b, what, g, func() *v1alpha1.LogicalUnitGroupSnapshot { return &v1alpha1.LogicalUnitGroupSnapshot{} }, &v1alpha1.LogicalUnitGroupSnapshotList{}, done,
		func(*v1alpha1.LogicalUnitGroupSnapshot) error { return nil }) // its own condition says which pairs it waits for
}

// ensureGroup creates the object, or returns the existing one. Only the creation needs the sources:
// a group snapshot outlives them.
func (b *Backend) ensureGroup(ctx context.Context, id, name string, members []v1alpha1.GroupSnapshotMember) (*v1alpha1.LogicalUnitGroupSnapshot, error) {
	for {
		old, err := b.readGroup(ctx, id)
		switch {
		case err == nil && old.Spec.Destroy:
			if err := b.waitGroupGone(ctx, old); err != nil {
				return nil, err
			}
			continue
		case err == nil && (old.Spec.Name != name || !equal(old.Spec.Members, members)):
			return nil, fmt.Errorf("%w: group snapshot %q exists, of volumes %s", backend.ErrExists, name, strings.Join(sourcesOf(old.Spec.Members), ", "))
		case err == nil:
			return old, nil
		case !errors.Is(err, backend.ErrNotFound):
			return nil, err
		}
		cluster, err := b.together(ctx, sourcesOf(members))
		if err != nil {
			return nil, fmt.Errorf("source_volume_ids: %w", err)
		}
		g := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{v1alpha1.LabelCluster: cluster}},
			Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: cluster, Name: name, Members: members}}
		err = b.c.Create(ctx, g, client.FieldOwner(v1alpha1.DriverManager))
		switch {
		case err == nil:
			return g, nil
		case !apierrors.IsAlreadyExists(err):
			return nil, apiError("group snapshot", id, err)
		}
	}
}

func sourcesOf(members []v1alpha1.GroupSnapshotMember) (out []string) {
	for _, m := range members {
		out = append(out, m.Source)
	}
	return out
}

// together checks that volumes can be in one group snapshot, and returns their StorageCluster. A
// volume that is being expanded would have one size in its snapshot and another one on its pair.
func (b *Backend) together(ctx context.Context, sources []string) (cluster string, err error) {
	luns := 0
	for i, id := range sources {
		lu, err := b.ready(ctx, id)
		switch {
		case err != nil:
			return "", err
		case i > 0 && lu.Spec.Cluster != cluster:
			return "", fmt.Errorf("%w: volume %s is in StorageCluster %s, volume %s in %s: take one group snapshot of each StorageCluster", backend.ErrNotTogether, sources[0], cluster, id, lu.Spec.Cluster)
		case lu.Spec.Size.Cmp(*lu.Status.Size) > 0:
			return "", fmt.Errorf("%w: volume %s is being expanded from %s to %s: retry when it is", backend.ErrNotTogether, id, lu.Status.Size, &lu.Spec.Size)
		}
		cluster = lu.Spec.Cluster
		luns += lunsOf(lu)
	}
	if luns > v1alpha1.MaxGroupMembers {
		return "", fmt.Errorf("%w: the volumes have %d LUNs, and a group snapshot has %d at most: take several", backend.ErrNotTogether, luns, v1alpha1.MaxGroupMembers)
	}
	return cluster, nil
}

// lunsOf is the number of LUNs of a volume.
func lunsOf(lu *v1alpha1.LogicalUnit) int {
	if s := lu.Spec.Striped; s != nil {
		return int(s.LUNs)
	}
	return 1
}
