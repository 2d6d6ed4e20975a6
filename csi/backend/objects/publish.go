package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
)

// Publish implements backend.Backend: it adds the host to the spec, and waits for its mapping in
// the status. If two controllers publish to two hosts at once, one fails because of the optimistic
// lock.
//
// The status counts only for the generation of this spec: an older status may have a mapping that
// an unpublish has ended.
func (b *Backend) Publish(ctx context.Context, req backend.Publish) (attach.Attachment, error) {
	what := fmt.Sprintf("publish volume %s to %s", req.VolumeID, req.HostIQN)
	if req.Auth != nil || req.MutualAuth != nil {
		return attach.Attachment{}, fmt.Errorf("%s: %w: secrets: the operator creates the CHAP credentials (StorageCluster.spec.security.chap): remove the publish and stage secrets from the StorageClass", what, backend.ErrInvalid)
	}
	lu, err := b.ready(ctx, req.VolumeID)
	if err == nil && lu.Spec.Host(req.HostIQN) == nil {
		err = b.hasRoom(ctx, lu, req.HostIQN)
	}
	if err != nil {
		return attach.Attachment{}, err
	}
	lu, err = b.change(ctx, req.VolumeID, func(lu *v1alpha1.LogicalUnit) error { return addHost(lu, req) })
	if err != nil {
		return attach.Attachment{}, err
	}
	generation := lu.Generation
	var found *v1alpha1.HostMapping
	replay := false
	lu, err = b.waitUnit(ctx, what, lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
		want := now.Spec.Host(req.HostIQN)
		if want == nil {
			return true, fmt.Errorf("%s: %w: the volume was unpublished by another call", what, backend.ErrUnavailable)
		}
		if now.Status.ObservedGeneration >= generation {
			m := now.Status.Host(req.HostIQN)
			// A mapping of the other kind is about to end: the log has just been replayed.
			if m != nil && reachable(now, m) && m.ReadOnly != want.Writes() {
				found, replay = m.DeepCopy(), want.Replay
				return true, nil
			}
		}
		return false, verdict(what, failed(now.Status.Conditions, v1alpha1.ConditionPublished, generation))
	})
	if errors.Is(err, errGone) {
		return attach.Attachment{}, notFound("volume", req.VolumeID)
	}
	if err != nil {
		return attach.Attachment{}, err
	}
	a := attach.Attachment{VolumeID: lu.Name, Generation: uint64(found.Generation), HostIQN: found.IQN, TargetIQN: found.TargetIQN,
		Portals: found.Portals, LUN: uint16(found.LUN), WWID: lu.Status.WWID, ReadOnly: found.ReadOnly, Replay: replay,
		Pair: lu.Spec.Placement.Pair, Enroll: found.CHAPUser != "", Sessions: b.sessions(ctx, lu, req.HostIQN)}
	if s := lu.Spec.Striped; s != nil {
		a.LUN, a.Stripe = 0, int64(s.StripeBytes)
		for _, l := range found.Legs {
			a.Legs = append(a.Legs, attach.Leg{LUN: uint16(l.LUN), WWID: l.WWID, Target: targetOf(&a, l)})
		}
	}
	return a, nil
}

// targetOf is the number of a leg's target, which is added if it is another one than those of the
// legs before.
func targetOf(a *attach.Attachment, l v1alpha1.LegMapping) int {
	if l.TargetIQN == "" || l.TargetIQN == a.TargetIQN {
		return 0
	}
	i := slices.IndexFunc(a.Others, func(t attach.Target) bool { return t.IQN == l.TargetIQN })
	if i < 0 {
		i, a.Others = len(a.Others), append(a.Others, attach.Target{IQN: l.TargetIQN, Portals: l.Portals, Pair: l.Pair})
	}
	return i + 1
}

// reachable reports whether a mapping says all that the host needs: of a striped volume, every leg.
func reachable(lu *v1alpha1.LogicalUnit, m *v1alpha1.HostMapping) bool {
	if s := lu.Spec.Striped; s != nil {
		return len(m.Legs) == int(s.LUNs)
	}
	return lu.Status.WWID != ""
}

// addHost adds the host to the spec.
func addHost(lu *v1alpha1.LogicalUnit, req backend.Publish) error {
	if lu.Spec.Destroy {
		return fmt.Errorf("%w: volume %q is being deleted", backend.ErrNotFound, lu.Name)
	}
	// "FAILED_PRECONDITION: Indicates that a volume corresponding to the specified volume_id has
	// already been published at another node and does not have MULTI_NODE volume capability." A
	// host that is being fenced still counts.
	for h := range hosts(lu) {
		if h != req.HostIQN && (req.Exclusive || !lu.Spec.Shared) {
			return fmt.Errorf("%w: volume %s is published to %s", backend.ErrInUse, lu.Name, h)
		}
		if h != req.HostIQN && req.OneWriter && !req.ReadOnly && writes(lu, h) {
			return fmt.Errorf("%w: volume %s is published to %s for writing", backend.ErrInUse, lu.Name, h)
		}
		// No other host mounts it until the log is replayed and the host that did so can no longer
		// write.
		if h != req.HostIQN && req.Replay && writes(lu, h) {
			return fmt.Errorf("%w: volume %s: %s is replaying the log of its filesystem, and no other worker can use the volume meanwhile: the call will be retried; "+
				"if this lasts, see the events of the pods on that worker", backend.ErrUnavailable, lu.Name, h)
		}
	}
	for _, h := range lu.Spec.Hosts {
		if strings.ToLower(h.IQN) != req.HostIQN {
			continue
		}
		if h.ReadOnly != req.ReadOnly {
			return fmt.Errorf("%w: volume %s is published to %s with readOnly %v", backend.ErrExists, lu.Name, h.IQN, h.ReadOnly)
		}
		return nil
	}
	// The log is not replayed while other hosts have the volume mounted. If it is dirty
	// nevertheless, the worker refuses to mount.
	replay := req.Replay && lu.Annotations[v1alpha1.AnnotationReplayed] != "true" && len(lu.Spec.Hosts) == 0
	if others := hosts(lu); replay {
		delete(others, req.HostIQN)
		for h := range others {
			return fmt.Errorf("%w: volume %s: %s is being fenced before the log of the filesystem can be replayed: the call will be retried", backend.ErrUnavailable, lu.Name, h)
		}
	}
	lu.Spec.Hosts = append(lu.Spec.Hosts, v1alpha1.HostAccess{IQN: req.HostIQN, ReadOnly: req.ReadOnly, Replay: replay})
	if !req.ReadOnly {
		delete(lu.Annotations, v1alpha1.AnnotationReplayed) // in the same write: the worker may crash and leave a dirty log
	}
	return nil
}

// Unpublish implements backend.Backend. It removes the host from the spec; the host is fenced when
// a status of this generation does not list it. This also holds for a host that was never in the
// spec, or that a lost status does not list.
func (b *Backend) Unpublish(ctx context.Context, id, hostIQN string) error {
	ours := func(iqn string) bool { return hostIQN == "" || strings.ToLower(iqn) == hostIQN }
	lu, err := b.change(ctx, id, func(lu *v1alpha1.LogicalUnit) error {
		lu.Spec.Hosts = slices.DeleteFunc(lu.Spec.Hosts, func(h v1alpha1.HostAccess) bool { return ours(h.IQN) })
		return nil
	})
	if errors.Is(err, backend.ErrNotFound) {
		return b.checkUnused(ctx, id)
	}
	if err != nil {
		return err
	}
	if lu.Spec.Placement == nil {
		return nil // without a placement there is no LUN
	}
	generation := lu.Generation
	_, err = b.waitUnit(ctx, fmt.Sprintf("unpublish volume %s from %q", id, hostIQN), lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
		fenced := now.Status.ObservedGeneration >= generation && !slices.ContainsFunc(now.Status.Hosts, func(h v1alpha1.HostMapping) bool { return ours(h.IQN) })
		// If another call has published it again, it is unknown whether the host was fenced in
		// between.
		again := slices.ContainsFunc(now.Spec.Hosts, func(h v1alpha1.HostAccess) bool { return ours(h.IQN) })
		if again && !fenced {
			return true, fmt.Errorf("unpublish volume %s from %q: %w: the volume was published by another call", id, hostIQN, backend.ErrUnavailable)
		}
		return fenced, nil
	})
	if errors.Is(err, errGone) {
		return b.checkUnused(ctx, id)
	}
	return err
}

// checkUnused returns an error if a volume without an object is in use. Normally an object is
// deleted only when no host reaches its LUN. After a forced deletion the LUN still has its hosts,
// and they cannot be fenced until the object is back: success would let a second host write. The
// PersistentVolume distinguishes the cases: after DeleteVolume it exists only for a moment, and is
// not Bound.
func (b *Backend) checkUnused(ctx context.Context, id string) error {
	var pvs corev1.PersistentVolumeList
	if err := b.c.List(ctx, &pvs); err != nil {
		return apiError("PersistentVolumes of volume", id, err)
	}
	for _, pv := range pvs.Items {
		if c := pv.Spec.CSI; c != nil && c.Driver == v1alpha1.DriverName && c.VolumeHandle == id && pv.Status.Phase == corev1.VolumeBound {
			return fmt.Errorf("%[1]w: the LogicalUnit %[3]s of PersistentVolume %[2]s does not exist, so that its host cannot be fenced: recreate it with `kubectl gemel import --apply`",
				backend.ErrUnavailable, pv.Name, id)
		}
	}
	return nil
}
