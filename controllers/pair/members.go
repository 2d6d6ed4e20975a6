package pair

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A pool may have more volumes on each node, its members. A member is mounted once its claim can be
// bound, and as long as it may have data: one that the spec does not have any more is drained by
// its node first. When the node says that it is empty, the claim is marked as empty, and the node
// is restarted without it. The claim is kept, as those of replaced disks are.
//
// Crash windows: what exists is read from the claims. A claim without a mark counts as one that may
// have data. A mark that is set before the restart is enough for every later operator; one that is
// set wrongly loses nothing, since a node does not start without a member that has data.

// Annotations of the claim of a member.
const (
	annotationEmpty = "gemel.storage/empty" // its node has moved all data away
	annotationTier  = "gemel.storage/tier"  // of the member, also when the spec does not have it any more
)

// member is one mounted volume of a pool.
type member struct {
	pool  string // of the StorageCluster
	of    string // the targets' name of the pool's backing volume
	name  string
	claim string
	tier  string
	lost  string // the id of the directory whose place it has taken; "": of none
	left  bool   // the spec does not have it any more
}

func (x *member) path() string { return "/volumes/" + x.of + "." + x.name }

// MemberClaim is the name of the claim of a member of a pool.
func MemberClaim(pair, node string, disk int32, pool, member string) string {
	return PoolClaim(pair, node, disk, pool) + "." + member
}

// smallestVolume is the least size of a volume, as for that of a pool.
var smallestVolume = resource.MustParse("1Gi")

// ensureMembers creates the claims of members, and adds to m what nodes can mount.
func (r *Reconciler) ensureMembers(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, m mounts) (later, err error) {
	for _, n := range p.Spec.Nodes {
		claims, err := r.memberClaims(ctx, p, &n)
		if err != nil {
			return nil, err
		}
		x := m[n.Name]
		for i := range c.Spec.Pools {
			pool := &c.Spec.Pools[i]
			wanted := map[string]bool{}
			if pool.Name != c.Spec.Pools[0].Name && !slices.ContainsFunc(x.pools, func(p v1alpha1.Pool) bool { return p.Name == pool.Name }) {
				continue // the pool itself is not there yet
			}
			for j := range pool.Volumes {
				v := &pool.Volumes[j]
				list, why, err := r.ensureVolumes(ctx, c, p, &n, pool, v, claims)
				if err != nil {
					return nil, err
				}
				if later == nil {
					later = why
				}
				for k := range v.Count {
					wanted[memberName(v, k)] = true
				}
				x.members = append(x.members, list...)
			}
			for name, claim := range claims[pool.Name] {
				if !wanted[name] && claim.Annotations[annotationEmpty] == "" && claim.Spec.VolumeName != "" {
					x.members = append(x.members, member{pool.Name, c.Spec.Volume(pool.Name), name, claim.Name, claim.Annotations[annotationTier], claim.Annotations[annotationReplaces], true})
				}
			}
		}
		slices.SortFunc(x.members, func(a, b member) int { return cmp.Or(strings.Compare(a.pool, b.pool), strings.Compare(a.name, b.name)) })
		if len(x.members) > 0 {
			m[n.Name] = x
		}
	}
	return later, nil
}

func memberName(v *v1alpha1.PoolVolumes, i int32) string { return v.Name + "-" + strconv.Itoa(int(i)) }

// memberClaims are the present claims of a node's members, by pool and name: of each the newest.
func (r *Reconciler) memberClaims(ctx context.Context, p *v1alpha1.TargetPair, n *v1alpha1.PairNode) (map[string]map[string]*corev1.PersistentVolumeClaim, error) {
	var l corev1.PersistentVolumeClaimList
	var from client.Reader = r.Client
	if strings.Contains(p.Annotations[annotationReplacing], "#") { // the cache may not have the claim that takes a place
		from = r.Live
	}
	if err := from.List(ctx, &l, client.InNamespace(r.Namespace), client.MatchingLabels(selector(p, n.Name)), client.HasLabels{v1alpha1.LabelPool, v1alpha1.LabelMember}); err != nil {
		return nil, err
	}
	found := map[string]map[string]*corev1.PersistentVolumeClaim{}
	for i := range l.Items {
		claim := &l.Items[i]
		pool, name := claim.Labels[v1alpha1.LabelPool], claim.Labels[v1alpha1.LabelMember]
		first := MemberClaim(p.Name, n.Name, n.Disk, pool, name)
		number, ok := claimNumber(claim.Name, first)
		if !ok { // of a disk that the node had before
			continue
		}
		if found[pool] == nil {
			found[pool] = map[string]*corev1.PersistentVolumeClaim{}
		}
		if other := found[pool][name]; other != nil {
			if k, _ := claimNumber(other.Name, first); k > number {
				continue
			}
		}
		found[pool][name] = claim
	}
	return found, nil
}

// ensureVolumes creates the claims of one entry of a pool's volumes, and returns those that the
// node can mount.
func (r *Reconciler) ensureVolumes(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, n *v1alpha1.PairNode, pool *v1alpha1.Pool, v *v1alpha1.PoolVolumes, claims map[string]map[string]*corev1.PersistentVolumeClaim) (list []member, later, err error) {
	d := &disk{fmt.Sprintf("spec.pools[%s].volumes[%s]", pool.Name, v.Name), pool.Name, v.StorageClassName, v.Size}
	class, unfit, err := r.storageClass(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	if unfit == nil && v.Size.Cmp(smallestVolume) < 0 {
		unfit = waiting(v1alpha1.ReasonInvalid, "%s.size: %s is less than 1Gi, the least that a backing volume has", d.field, v.Size.String())
	}
	for i := range v.Count {
		name := memberName(v, i)
		claim, lost := MemberClaim(p.Name, n.Name, n.Disk, pool.Name, name), ""
		if now := claims[pool.Name][name]; now != nil {
			claim, lost = now.Name, now.Annotations[annotationReplaces]
		}
		why, err := r.ensureDisk(ctx, c, p, n, d, class, claim, map[string]string{v1alpha1.LabelMember: name}, unfit)
		if err != nil {
			return nil, nil, err
		}
		if why != nil {
			if later == nil {
				later = why
			}
			continue
		}
		if err := r.markMember(ctx, claims[pool.Name][name], v.Tier, false); err != nil {
			return nil, nil, err
		}
		list = append(list, member{pool.Name, c.Spec.Volume(pool.Name), name, claim, v.Tier, lost, false})
	}
	return list, later, nil
}

// markMember records the tier of a member, and whether it is empty. A claim that was made just now
// is marked with the next reconcile.
func (r *Reconciler) markMember(ctx context.Context, claim *corev1.PersistentVolumeClaim, tier string, empty bool) error {
	if claim == nil || claim.Annotations[annotationTier] == tier && (claim.Annotations[annotationEmpty] != "") == empty {
		return nil
	}
	patch := client.MergeFrom(claim.DeepCopy())
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	set := func(key, value string) {
		if claim.Annotations[key] = value; value == "" {
			delete(claim.Annotations, key)
		}
	}
	set(annotationTier, tier)
	if set(annotationEmpty, ""); empty {
		set(annotationEmpty, "true")
	}
	return r.Patch(ctx, claim, patch)
}

// tierArgs are the arguments of gemel-target for members and tiers.
func tierArgs(c *v1alpha1.StorageCluster, m mount) (a []string) {
	for i := range m.members {
		x := &m.members[i]
		a = append(a, "--backing-volume="+x.of+"/"+x.name+"="+x.path()+"/gemel")
		if x.lost != "" {
			a = append(a, "--lost-volume="+x.lost)
		}
		if x.tier == v1alpha1.TierFast {
			a = append(a, "--tier="+x.of+"/"+x.name+"=fast")
		}
	}
	for i := range c.Spec.Pools {
		pool := &c.Spec.Pools[i]
		slow := func(x member) bool { return x.pool == pool.Name && x.tier != v1alpha1.TierFast }
		if pool.Tier == v1alpha1.TierFast && slices.ContainsFunc(m.members, slow) { // until then it is the only place for data
			a = append(a, "--tier="+c.Spec.Volume(pool.Name)+"/home=fast")
		}
	}
	if t := c.Spec.Tiering; t != nil && t.Mode != "" && t.Mode != v1alpha1.TieringAuto {
		a = append(a, "--tiering="+strings.ToLower(t.Mode))
	}
	return a
}

// drainMembers has nodes empty members that the spec does not have any more, and ends drains of
// those that it has again. It returns why it is not done yet, for which nothing else waits.
func (r *Reconciler) drainMembers(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair, m mounts, v *view) (later error) {
	for i := range v.nodes {
		n := &v.nodes[i]
		if len(m[n.name].members) == 0 {
			continue
		}
		claims, err := r.memberClaims(ctx, p, &p.Spec.Nodes[i])
		if err != nil {
			return err
		}
		for _, x := range m[n.name].members {
			at := placeOf(n.status, &x)
			why := r.noteMember(ctx, n, claims[x.pool][x.name], at.GetId())
			switch {
			case why != nil:
			case at == nil && x.left:
				why = waiting(v1alpha1.ReasonMember, "spec.pools[%s].volumes: member %s of node %s is not in the list any more; it will be emptied when the node serves with it", x.pool, x.name, n.name)
			case at == nil:
			case x.left && at.Draining && at.ExtentsLeft == 0:
				why = r.markMember(ctx, claims[x.pool][x.name], x.tier, true)
				if why == nil {
					r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonMember, "Empty", fmt.Sprintf("member %s of pool %s of node %s is empty; the node is restarted without it, and its claim %s is kept", x.name, x.pool, n.name, x.claim))
					why = waiting(v1alpha1.ReasonMember, "spec.pools[%s].volumes: member %s of node %s is empty; the node will be restarted without it", x.pool, x.name, n.name)
				}
			case x.left && at.Draining:
				why = waiting(v1alpha1.ReasonMember, "%s", drainProgress(&x, n.name, at))
			case x.left != at.Draining:
				why = r.drainMember(ctx, p, n, &x)
			}
			if later == nil {
				later = why
			}
		}
	}
	return later
}

func placeOf(s *targetv1.Status, x *member) *targetv1.Place {
	for _, at := range s.GetPlaces() {
		if at.Volume == x.of && at.Member == x.name {
			return at
		}
	}
	return nil
}

func drainProgress(x *member, node string, at *targetv1.Place) string {
	text := fmt.Sprintf("spec.pools[%s].volumes: node %s moves data away from member %s: %d extents of 4 MiB are left", x.pool, node, x.name, at.ExtentsLeft)
	if at.SecondsLeft > 0 {
		text += fmt.Sprintf(", for about %v", (time.Duration(at.SecondsLeft) * time.Second).Round(time.Second))
	}
	if at.Reason != "" {
		text += "; " + at.Reason
	}
	return text
}

// drainMember begins the drain of a member, or ends it.
func (r *Reconciler) drainMember(ctx context.Context, p *v1alpha1.TargetPair, n *nodeView, x *member) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	t, err := r.Targets.Node(ctx, p, n.name)
	if err == nil {
		_, err = t.DrainMember(ctx, &targetv1.DrainMemberRequest{Volume: x.of, Member: x.name, End: !x.left})
	}
	what := "is not in the list any more, and"
	if !x.left {
		what = "is in the list again, and its drain"
	}
	switch {
	case err != nil && status.Code(err) == codes.Unknown:
		return err
	case err != nil:
		return waiting(v1alpha1.ReasonMember, "spec.pools[%s].volumes: member %s of node %s %s waits: %s", x.pool, x.name, n.name, what, status.Convert(err).Message())
	case x.left:
		r.recordEvent(p, corev1.EventTypeNormal, v1alpha1.ReasonMember, "Drain", fmt.Sprintf("node %s moves data away from member %s of pool %s, which spec.pools[%s].volumes does not have any more", n.name, x.name, x.pool, x.pool))
		return waiting(v1alpha1.ReasonMember, "spec.pools[%s].volumes: node %s begins to move data away from member %s", x.pool, n.name, x.name)
	}
	return nil
}

// memberStatus is what a node reports of its members.
func memberStatus(c *v1alpha1.StorageCluster, s *targetv1.Status, before []v1alpha1.MemberStatus) (out []v1alpha1.MemberStatus) {
	for _, at := range s.GetPlaces() {
		x := v1alpha1.MemberStatus{Pool: c.Spec.PoolOf(at.Volume), Name: at.Member, Tier: v1alpha1.TierCapacity, Draining: at.Draining, ExtentsLeft: int64(at.ExtentsLeft), Reason: at.Reason}
		if at.Fast {
			x.Tier = v1alpha1.TierFast
		}
		var free *resource.Quantity
		if i := slices.IndexFunc(before, func(b v1alpha1.MemberStatus) bool { return b.Pool == x.Pool && b.Name == x.Name }); i >= 0 {
			free = before[i].Free
		}
		x.Capacity, x.Free = resource.NewQuantity(int64(at.CapacityBytes), resource.BinarySI), quantized(at.FreeBytes, free)
		out = append(out, x)
	}
	return out
}

// membersBefore are those of the status before: a node that does not answer keeps them.
func membersBefore(before *v1alpha1.TargetPairStatus, node string) []v1alpha1.MemberStatus {
	for i := range before.Nodes {
		if before.Nodes[i].Name == node {
			return before.Nodes[i].Members
		}
	}
	return nil
}
