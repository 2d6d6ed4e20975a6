package logicalunit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
)

// modify sets the pins, the write cache mode and the preferred node of the spec. It compares with
// the pair each time, so that nothing is missed after a crash or with a lost status; fields that
// the spec does not set stay, except for the pins. The pair itself moves the LUN. While the spec
// has a pin, the preferred node is not set: it counts again when the pin is gone.
func (p *pass) modify(ctx context.Context) error {
	pinned := errors.Join(p.pin(ctx), p.pinTier(ctx), p.spread(ctx)) // on their own: a pair that knows neither makes the other changes
	req := &targetv1.ModifyLUNRequest{Uuid: p.lun.Uuid}
	if want := targetv1.ParseWriteCache(p.lu.Spec.WriteCache); want != p.lun.WriteCache {
		req.WriteCache = want
	}
	if want := p.lu.Spec.PreferredNode; want != p.lun.PreferredNode && p.lu.Spec.PinnedNode == "" && pinOf(p.lun) == "" {
		req.PreferredNode = want
	}
	if req.WriteCache == targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED && req.PreferredNode == "" {
		return pinned
	}
	lun, err := change(ctx, p, "modify the LUN", service.ModifyLUN, req)
	if err != nil {
		return errors.Join(pinned, err)
	}
	p.lun.WriteCache, p.lun.PreferredNode = lun.WriteCache, lun.PreferredNode
	return pinned
}

// pinOf is the node that a LUN is pinned to, empty if it is not pinned.
func pinOf(l *targetv1.LUN) string {
	if l.PinnedNode == v1alpha1.NoPin {
		return ""
	}
	return l.PinnedNode
}

// pin sets the pin of the spec, or its end.
func (p *pass) pin(ctx context.Context) error {
	want := p.lu.Spec.PinnedNode
	if pinOf(p.lun) == want {
		return nil
	}
	lun, err := change(ctx, p, "pin the LUN", service.ModifyLUN, &targetv1.ModifyLUNRequest{Uuid: p.lun.Uuid, PinnedNode: cmp.Or(want, v1alpha1.NoPin)})
	switch {
	case finding.Code(err) == codes.Unimplemented || err == nil && pinOf(lun) != want: // the request or the field is unknown
		return finding.New(v1alpha1.ReasonNotSupported, "spec.pinnedNode: a node of pair %s is of a release that cannot pin LUNs: upgrade the nodes, and the LUN is pinned then", p.lu.Spec.Placement.Pair)
	case err != nil:
		return err
	}
	p.lun.PinnedNode, p.lun.PreferredNode, p.lun.Owner = lun.PinnedNode, lun.PreferredNode, lun.Owner
	return nil
}

// pinTier sets the tier of the spec, or ends the pin.
func (p *pass) pinTier(ctx context.Context) error {
	want := p.lu.Spec.Tier
	if v1alpha1.TierOf(p.lun.PinnedTier) == want {
		return nil
	}
	lun, err := change(ctx, p, "pin the LUN to a tier", service.ModifyLUN, &targetv1.ModifyLUNRequest{Uuid: p.lun.Uuid, PinnedTier: cmp.Or(strings.ToLower(want), v1alpha1.NoPin)})
	switch {
	case finding.Code(err) == codes.Unimplemented || err == nil && v1alpha1.TierOf(lun.PinnedTier) != want:
		return finding.New(v1alpha1.ReasonNotSupported, "spec.tier: a node of pair %s is of a release that knows no tiers: upgrade the nodes, and the LUN is pinned then", p.lu.Spec.Placement.Pair)
	case finding.Code(err) == codes.InvalidArgument:
		return finding.New(v1alpha1.ReasonInvalid, "spec.tier: a node of pair %s has no volumes of both tiers for the LUN's pool: add volumes of tier Fast to the pool, or leave tier out", p.lu.Spec.Placement.Pair)
	case err != nil:
		return err
	}
	p.lun.PinnedTier = lun.PinnedTier
	return nil
}

const noGroup = "none" // spread_group of a LUN that belongs to no group

// spread tells the pair which group the LUN is kept spread with, or that it is kept with none. A
// pair with a node of 0.1.0 is not told: it evens out no work.
func (p *pass) spread(ctx context.Context) error {
	if p.lun.SpreadGroup == "" {
		return nil
	}
	want := noGroup
	if l := p.lu.Spec.Leg; l != nil { // legs stay spread among themselves, whatever group their volume is in
		want = "striped/" + l.Of
	} else {
		g, _, known := p.findGroup(ctx)
		if !known {
			return nil // it stays as it is until the group can be read
		}
		if g != nil {
			want = client.ObjectKeyFromObject(g).String()
		}
	}
	if want == p.lun.SpreadGroup {
		return nil
	}
	lun, err := change(ctx, p, "set the group of the LUN", service.ModifyLUN, &targetv1.ModifyLUNRequest{Uuid: p.lun.Uuid, SpreadGroup: want})
	switch {
	case finding.Code(err) == codes.Unimplemented:
		return nil
	case err != nil:
		return err
	}
	p.lun.SpreadGroup = lun.SpreadGroup
	return nil
}

const exists = "the LUN exists"

// existence is the message of a LUN that is as the spec says: where it is pinned, and what it waits
// for if it is not there.
func (p *pass) existence(pair *v1alpha1.TargetPair) string {
	if p.lun == nil || pinOf(p.lun) == "" || pinOf(p.lun) == p.lun.Owner {
		return exists
	}
	at, waits := pinOf(p.lun), "the pair moves it there"
	switch o := pair.Status.Ownership; {
	case !slices.Contains(pair.Status.Members, at):
		waits = fmt.Sprintf("node %s is no member of the pair at present, members: %s", at, strings.Join(pair.Status.Members, ", "))
	case o != nil && o.DrainedNode == at:
		waits = fmt.Sprintf("node %s is drained: %s", at, o.DrainReason)
	}
	return fmt.Sprintf("%s; it is pinned to node %s, and node %s owns it: %s", exists, at, p.lun.Owner, waits)
}

// quarantine is why hosts cannot use a LUN that is otherwise as the spec says.
func (p *pass) quarantine() error {
	if p.lun.Quarantine == "" {
		return nil
	}
	return finding.New(v1alpha1.ReasonQuarantined, "pair %s executes no command of hosts for this LUN: %s; its data is safe. Stop the pods that use it, read the logs of the processes that crashed, "+
		"upgrade to a release without the defect, then run: kubectl gemel end-quarantine %s", p.lu.Spec.Placement.Pair, p.lun.Quarantine, p.lu.Name)
}
