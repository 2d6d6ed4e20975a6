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

// Publish implements backend.Backend: the host is written into the spec, and the status says how it reaches the LUN. Of two
// controllers that publish to two hosts one loses: each writes only if nobody else has since it looked.
//
// The status is believed when it speaks of this spec: before that, a mapping in it may be one that an unpublish has ended.
func (b *Backend) Publish(ctx context.Context, q backend.Publish) (attach.Attachment, error) {
	what := fmt.Sprintf("publish volume %s to %s", q.VolumeID, q.HostIQN)
	if q.Auth != nil || q.MutualAuth != nil {
		return attach.Attachment{}, fmt.Errorf("%s: %w: secrets: the operator makes CHAP credentials itself (StorageCluster.spec.security.chap): take the publish and stage secrets out of the StorageClass", what, backend.ErrInvalid)
	}
	if _, err := b.ready(ctx, q.VolumeID); err != nil {
		return attach.Attachment{}, err
	}
	lu, err := b.change(ctx, q.VolumeID, func(lu *v1alpha1.LogicalUnit) error { return addHost(lu, q) })
	if err != nil {
		return attach.Attachment{}, err
	}
	generation := lu.Generation
	var found *v1alpha1.HostMapping
	replay := false
	lu, err = b.waitUnit(ctx, what, lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
		want := now.Spec.Host(q.HostIQN)
		if want == nil {
			return true, fmt.Errorf("%s: %w: it was unpublished meanwhile", what, backend.ErrUnavailable)
		}
		if now.Status.ObservedGeneration >= generation {
			m := now.Status.Host(q.HostIQN)
			// A mapping of the other kind is one that is about to end: the log was replayed in this moment.
			if m != nil && now.Status.WWID != "" && m.ReadOnly != want.Writes() {
				found, replay = m.DeepCopy(), want.Replay
				return true, nil
			}
		}
		return false, verdict(what, failed(now.Status.Conditions, v1alpha1.ConditionPublished, generation))
	})
	if errors.Is(err, errGone) {
		return attach.Attachment{}, notFound("volume", q.VolumeID)
	}
	if err != nil {
		return attach.Attachment{}, err
	}
	return attach.Attachment{VolumeID: lu.Name, Generation: uint64(found.Generation), HostIQN: found.IQN, TargetIQN: found.TargetIQN,
		Portals: found.Portals, LUN: uint16(found.LUN), WWID: lu.Status.WWID, ReadOnly: found.ReadOnly, Replay: replay,
		Pair: lu.Spec.Placement.Pair, Enroll: found.CHAPUser != ""}, nil
}

// addHost puts the host into the spec.
func addHost(lu *v1alpha1.LogicalUnit, q backend.Publish) error {
	if lu.Spec.Destroy {
		return fmt.Errorf("%w: volume %q is being deleted", backend.ErrNotFound, lu.Name)
	}
	// "FAILED_PRECONDITION: Indicates that a volume corresponding to the specified volume_id has already been published at another
	// node and does not have MULTI_NODE volume capability." A host that is being fenced counts until it is.
	for h := range hosts(lu) {
		if h != q.HostIQN && (q.Exclusive || !lu.Spec.Shared) {
			return fmt.Errorf("%w: volume %s is published to %s", backend.ErrInUse, lu.Name, h)
		}
		if h != q.HostIQN && q.OneWriter && !q.ReadOnly && writes(lu, h) {
			return fmt.Errorf("%w: volume %s is published to %s for writing", backend.ErrInUse, lu.Name, h)
		}
		// It is mounted nowhere until the log is replayed, and until who did that cannot write any more.
		if h != q.HostIQN && q.Replay && writes(lu, h) {
			return fmt.Errorf("%w: volume %s: %s is replaying the log of its filesystem, and no other worker has it meanwhile: this is tried again; "+
				"if it lasts, the events of the pods on that worker say why", backend.ErrUnavailable, lu.Name, h)
		}
	}
	for _, h := range lu.Spec.Hosts {
		if strings.ToLower(h.IQN) != q.HostIQN {
			continue
		}
		if h.ReadOnly != q.ReadOnly {
			return fmt.Errorf("%w: volume %s is published to %s with readOnly %v", backend.ErrExists, lu.Name, h.IQN, h.ReadOnly)
		}
		return nil
	}
	// Beside others the log is not replayed: what they have mounted must not change. If it is dirty all the same, the worker refuses to mount.
	replay := q.Replay && lu.Annotations[v1alpha1.AnnotationReplayed] != "true" && len(lu.Spec.Hosts) == 0
	if others := hosts(lu); replay {
		delete(others, q.HostIQN)
		for h := range others {
			return fmt.Errorf("%w: volume %s: %s is being fenced, and the log of the filesystem is to be replayed after that: this is tried again", backend.ErrUnavailable, lu.Name, h)
		}
	}
	lu.Spec.Hosts = append(lu.Spec.Hosts, v1alpha1.HostAccess{IQN: q.HostIQN, ReadOnly: q.ReadOnly, Replay: replay})
	if !q.ReadOnly {
		delete(lu.Annotations, v1alpha1.AnnotationReplayed) // in the same write: the worker that writes may die with a dirty log
	}
	return nil
}

// Unpublish implements backend.Backend. The host leaves the spec, and is fenced when a status that speaks of such a spec does not
// have it: also one that was never in the spec, or is not in the status because that was lost.
func (b *Backend) Unpublish(ctx context.Context, id, hostIQN string) error {
	ours := func(iqn string) bool { return hostIQN == "" || strings.ToLower(iqn) == hostIQN }
	lu, err := b.change(ctx, id, func(lu *v1alpha1.LogicalUnit) error {
		lu.Spec.Hosts = slices.DeleteFunc(lu.Spec.Hosts, func(h v1alpha1.HostAccess) bool { return ours(h.IQN) })
		return nil
	})
	if errors.Is(err, backend.ErrNotFound) {
		return b.unneeded(ctx, id)
	}
	if err != nil {
		return err
	}
	if lu.Spec.Placement == nil {
		return nil // no LUN, no host: it is placed before it is made
	}
	generation := lu.Generation
	_, err = b.waitUnit(ctx, fmt.Sprintf("unpublish volume %s from %q", id, hostIQN), lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
		fenced := now.Status.ObservedGeneration >= generation && !slices.ContainsFunc(now.Status.Hosts, func(h v1alpha1.HostMapping) bool { return ours(h.IQN) })
		// Published again by somebody else after our write: it may have been fenced in between, and nobody can tell any more.
		again := slices.ContainsFunc(now.Spec.Hosts, func(h v1alpha1.HostAccess) bool { return ours(h.IQN) })
		if again && !fenced {
			return true, fmt.Errorf("unpublish volume %s from %q: %w: it was published meanwhile", id, hostIQN, backend.ErrUnavailable)
		}
		return fenced, nil
	})
	if errors.Is(err, errGone) {
		return b.unneeded(ctx, id)
	}
	return err
}

// unneeded is an error when a volume without object is one that somebody has. An object goes in good order only when no host reaches
// its LUN. One that was deleted by force leaves the LUN with its hosts, and nobody can fence them until it is back: "unpublished"
// would let a second host write beside the first. The PersistentVolume tells the two apart: it outlives DeleteVolume only for a
// moment, and is being released then.
func (b *Backend) unneeded(ctx context.Context, id string) error {
	var pvs corev1.PersistentVolumeList
	if err := b.c.List(ctx, &pvs); err != nil {
		return apiError("PersistentVolumes of volume", id, err)
	}
	for _, pv := range pvs.Items {
		if c := pv.Spec.CSI; c != nil && c.Driver == v1alpha1.DriverName && c.VolumeHandle == id && pv.Status.Phase == corev1.VolumeBound {
			return fmt.Errorf("%w: PersistentVolume %s has no LogicalUnit %s any more, so that its host cannot be fenced: make it again with `kubectl gemel import --apply`",
				backend.ErrUnavailable, pv.Name, id)
		}
	}
	return nil
}
