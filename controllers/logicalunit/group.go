package logicalunit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/placement"
)

// group is the ConsistencyGroup that spreads the LUN, and the name of the LUN's claim; nil if there
// is none. Spread is a preference: a group that cannot be read, or several that select the claim,
// keep no LUN from being placed, and the conditions of the groups tell of the latter.
func (p *pass) group(ctx context.Context) (g *v1alpha1.ConsistencyGroup, claim string) {
	g, claim, _ = p.findGroup(ctx)
	return g, claim
}

// findGroup is group; known: everything that tells could be read.
func (p *pass) findGroup(ctx context.Context) (g *v1alpha1.ConsistencyGroup, claim string, known bool) {
	if p.Groups == nil {
		return nil, "", false
	}
	namespace, claim, err := p.Groups.ClaimOf(ctx, p.lu)
	if err == nil {
		g, err = p.Groups.Of(ctx, namespace, claim)
	}
	switch {
	case errors.Is(err, groups.ErrConflict):
		ctrl.LoggerFrom(ctx).Info("the LUN is not spread", "reason", err.Error())
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the ConsistencyGroup of the LUN: it is not spread")
		return nil, "", false
	case g != nil && g.Spec.Spread != v1alpha1.SpreadNone:
		return g, claim, true
	}
	return nil, "", true
}

// choose is placement.Choose with the group of the LUN.
func (p *pass) choose(ctx context.Context, pairs []placement.Pair, req placement.Request) (placement.Choice, error) {
	g, claim := p.group(ctx)
	if g == nil {
		return placement.Choose(pairs, req)
	}
	r := &p.reserved
	r.mu.Lock()
	defer r.mu.Unlock()
	claims, err := p.Groups.ClaimsOf(ctx, g) // after the lock: what is no longer reserved is in the cache
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot read the claims of the ConsistencyGroup: the LUN is not spread")
		return placement.Choose(pairs, req)
	}
	key, now := client.ObjectKeyFromObject(g), time.Now()
	req.Group = &placement.Group{Name: key.String(), Members: r.with(key, groups.Members(claims, now), claim, now)}
	choice, err := placement.Choose(pairs, req)
	if err == nil {
		home := cmp.Or(p.lu.Spec.PinnedNode, p.lu.Spec.PreferredNode, choice.Home)
		r.add(key, placement.Member{Name: claim, Pair: choice.Pair, Home: home}, now)
	}
	return choice, err
}

// staysSpread reports whether the home of the LUN may follow a host to a node: not where its group
// would be less spread then.
func (p *pass) staysSpread(ctx context.Context, node string) bool {
	g, claim := p.group(ctx)
	if g == nil {
		return true
	}
	claims, err := p.Groups.ClaimsOf(ctx, g)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot read the claims of the ConsistencyGroup: the home of the LUN follows its host")
		return true
	}
	members := &placement.Group{Name: g.Name, Members: groups.Members(claims, time.Now())}
	return members.Follows(claim, node)
}

// reservedFor is how long a choice is remembered: longer than a placement takes to come back from
// the API server to the cache. A write that failed is forgotten after that.
const reservedFor = time.Minute

// reservations are the places that members of groups got a moment ago. The volumes of a StatefulSet
// are placed at the same time, and none of them is in the cache yet when the next one is chosen;
// without reservations they would all go to the same node. After a restart the cache is read again
// and has them all.
type reservations struct {
	mu      sync.Mutex
	byGroup map[types.NamespacedName][]reservation
}

type reservation struct {
	placement.Member
	at time.Time
}

// with adds the reserved members to those of the cache, and leaves one claim out: the one that is
// being placed, perhaps again.
func (r *reservations) with(group types.NamespacedName, members []placement.Member, claim string, now time.Time) []placement.Member {
	known := map[string]bool{claim: true}
	members = slices.DeleteFunc(members, func(m placement.Member) bool { return m.Name == claim })
	for _, m := range members {
		known[m.Name] = true
	}
	left := slices.DeleteFunc(r.byGroup[group], func(x reservation) bool { return known[x.Name] || now.Sub(x.at) > reservedFor })
	delete(r.byGroup, group)
	for _, x := range left {
		r.add(group, x.Member, x.at)
		members = append(members, x.Member)
	}
	return members
}

func (r *reservations) add(group types.NamespacedName, m placement.Member, now time.Time) {
	if r.byGroup == nil {
		r.byGroup = map[types.NamespacedName][]reservation{}
	}
	r.byGroup[group] = append(r.byGroup[group], reservation{m, now})
}
