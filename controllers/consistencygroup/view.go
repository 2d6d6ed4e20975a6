package consistencygroup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/placement"
)

// view is what a reconcile has found of a group.
type view struct {
	claims  []groups.Claim
	all     groups.Namespace // every group of the namespace
	members []placement.Member
	luns    map[string]*v1alpha1.LogicalUnit // of the members, by claim
	lastCut *v1alpha1.GroupCut
}

// look reads the claims and LUNs of a group from the caches.
func (r *Reconciler) look(ctx context.Context, g *v1alpha1.ConsistencyGroup) (*view, error) {
	v := &view{luns: map[string]*v1alpha1.LogicalUnit{}}
	var err error
	if v.claims, err = r.Groups.ClaimsOf(ctx, g); err != nil {
		return nil, err
	}
	if v.all, err = r.Groups.InNamespace(ctx, g.Namespace); err != nil {
		return nil, err
	}
	for _, c := range v.claims {
		if c.LUN != nil {
			v.luns[c.Name] = c.LUN
		}
	}
	v.members = groups.Members(v.claims, r.now())
	for i := range v.members {
		r.recall(&v.members[i], v.luns[v.members[i].Name])
	}
	v.lastCut, err = r.findLastCut(ctx, v.luns)
	return v, err
}

// judge is what is wrong with the group, or that it is ready.
func (v *view) judge(g *v1alpha1.ConsistencyGroup) (*finding.Finding, string) {
	if len(v.claims) == 0 {
		return finding.New(v1alpha1.ReasonNoClaims, "spec.selector selects no claim of namespace %s: correct it, or give the claims its labels", g.Namespace), ""
	}
	if f := v.conflict(g); f != nil {
		return f, ""
	}
	bound, clusters := 0, map[string]string{} // a claim of each cluster
	var incomplete *finding.Finding
	for _, c := range v.claims {
		switch {
		case c.Foreign != "":
			return finding.New(v1alpha1.ReasonInvalid, "claim %s is bound to %s, which is not a volume of Gemel: change spec.selector, or the labels of the claim", c.Name, c.Foreign), ""
		case !c.Bound:
			continue
		case c.LUN == nil:
			incomplete = cmp.Or(incomplete, finding.New(v1alpha1.ReasonProgressing, "claim %s is bound, but its LogicalUnit does not exist: kubectl gemel why %s -n %s says more", c.Name, c.Name, g.Namespace))
		case c.LUN.Spec.Placement == nil || !object.IsMade(c.LUN):
			incomplete = cmp.Or(incomplete, finding.New(v1alpha1.ReasonProgressing, "the LUN of claim %s is being created", c.Name))
		default:
			clusters[c.LUN.Spec.Cluster] = cmp.Or(clusters[c.LUN.Spec.Cluster], c.Name)
		}
		bound++
	}
	names := slices.Sorted(maps.Keys(clusters))
	switch {
	case len(names) > 1:
		var parts []string
		for _, name := range names {
			parts = append(parts, fmt.Sprintf("claim %s in %s", clusters[name], name))
		}
		return finding.New(v1alpha1.ReasonSeveralClusters, "the LUNs of the claims are in several StorageClusters (%s): a group has claims of one", strings.Join(parts, ", ")), ""
	case incomplete != nil:
		return incomplete, ""
	case bound == 0:
		return finding.New(v1alpha1.ReasonProgressing, "none of the %d claims is bound yet", len(v.claims)), ""
	}
	// Every bound claim has a LUN in a cluster.
	return nil, fmt.Sprintf("%d of %d claims are bound, and their LUNs are in StorageCluster %s", bound, len(v.claims), names[0])
}

// conflict names the first claim that another group selects as well.
func (v *view) conflict(g *v1alpha1.ConsistencyGroup) *finding.Finding {
	if len(v.all) < 2 {
		return nil
	}
	var f *finding.Finding
	more := 0
	for _, c := range v.claims {
		found := v.all.Matching(c.Labels)
		if len(found) < 2 {
			continue
		}
		if f != nil {
			more++
			continue
		}
		var names []string
		for _, x := range found {
			names = append(names, x.Name)
		}
		f = finding.New(v1alpha1.ReasonConflict, "claim %s is selected by the ConsistencyGroups %s", c.Name, strings.Join(names, " and "))
	}
	if f == nil {
		return nil
	}
	if more > 0 {
		f.Message += fmt.Sprintf(", and %d more claims are selected twice", more)
	}
	f.Message += ": change spec.selector of one of them; until then the group " + g.Name + " moves nothing, and new LUNs of such claims are placed without a group"
	return f
}

// report sets the fields of the status.
func (v *view) report(s *v1alpha1.ConsistencyGroupStatus) {
	s.Claims, s.Members = int32(len(v.claims)), nil
	shown := v.members[:min(len(v.members), v1alpha1.GroupMembersShown)]
	s.OmittedMembers = int32(len(v.members) - len(shown))
	s.Balance, s.LastCut = placement.Balance(v.members), v.lastCut
	for _, m := range shown {
		lu := v.luns[m.Name]
		s.Members = append(s.Members, v1alpha1.GroupMember{Claim: m.Name, LogicalUnit: lu.Name, Pair: m.Pair, Pool: lu.Spec.Placement.Pool,
			Node: m.Owner, Home: m.Home, Reason: placement.Why(m, v.members)})
	}
}
