package logicalunit

import (
	"context"
	"errors"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// list takes the hosts from what the pair said. Whether a mapping is read-only a target of an earlier release does not say, and with which
// credentials it was made none says: that is remembered in the status with the generation, which differs for each mapping.
func (p *pass) list() {
	p.listed, p.hosts = true, nil
	for _, m := range p.lun.GetMappings() {
		h := mapping(m)
		for _, old := range p.lu.Status.Hosts {
			if old.IQN != h.IQN || old.Generation != h.Generation {
				continue
			}
			h.CHAPUser, h.AttachMode = old.CHAPUser, old.AttachMode
			if m.ReadOnly == nil {
				h.ReadOnly = old.ReadOnly
			}
		}
		p.hosts = append(p.hosts, h)
	}
}

func mapping(m *targetv1.Mapping) v1alpha1.HostMapping {
	h := v1alpha1.HostMapping{IQN: m.HostIqn, LUN: int32(m.Lun), TargetIQN: m.TargetIqn, Generation: int64(m.Generation), ReadOnly: m.GetReadOnly()}
	for _, portal := range m.Portals {
		h.Portals = append(h.Portals, portal.Address)
	}
	return h
}

// modes copies from the Host objects how each host attaches: it cannot change while the host holds a LUN. What cannot be told stays as it
// was: nothing depends on it.
func (p *pass) modes(ctx context.Context) {
	if len(p.hosts) == 0 {
		return
	}
	var list v1alpha1.HostList
	if p.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return
	}
	for i := range p.hosts {
		for j := range list.Items {
			if strings.ToLower(list.Items[j].Spec.IQN) == p.hosts[i].IQN {
				p.hosts[i].AttachMode = list.Items[j].Spec.AttachMode
			}
		}
	}
}

// wanted is a host as the spec wants it; the pair knows names in lower case.
func (p *pass) wanted(iqn string) (v1alpha1.HostAccess, bool) {
	if h := p.lu.Spec.Host(iqn); h != nil {
		return *h, true
	}
	return v1alpha1.HostAccess{}, false
}

// admit lets in the hosts of the spec and no other one. Those that are not wanted go first: a LUN that is not shared has never
// two. One that cannot be fenced does not keep others from being fenced, but nobody is let in before all are.
func (p *pass) admit(ctx context.Context) error {
	if err := p.fence(ctx); err != nil {
		return err
	}
	var errs []error
	for _, h := range p.lu.Spec.Hosts {
		errs = append(errs, p.mapHost(ctx, h))
	}
	return errors.Join(errs...)
}

// fence unmaps what the pair has mapped and the spec does not want so. A host leaves p.hosts, and so the status, only when the pair
// has said that no command of it is running or will be accepted.
func (p *pass) fence(ctx context.Context) error {
	var errs []error
	confirmed := false
	for _, h := range slices.Clone(p.hosts) {
		if _, ok := p.wanted(h.IQN); ok && !p.otherMode(h) {
			continue
		}
		// An old cache may lack a host that was let in by now; to unmap that one would take a device away from under its pod.
		if !confirmed {
			if err := object.Confirm(ctx, p.Live, p.lu); err != nil {
				return err
			}
			confirmed = true
		}
		if _, err := rpc(ctx, p, "fence "+h.IQN, service.UnmapHost, &targetv1.UnmapHostRequest{LunUuid: p.lun.Uuid, HostIqn: h.IQN}); err != nil {
			errs = append(errs, err)
			continue
		}
		p.hosts = slices.DeleteFunc(p.hosts, func(o v1alpha1.HostMapping) bool { return o.IQN == h.IQN })
	}
	return errors.Join(errs...)
}

// otherMode tells that a host was let in with another readOnly than it is to have, as far as that is known. One that has replayed a log is such a
// host: its writes end before anybody else is let in.
func (p *pass) otherMode(h v1alpha1.HostMapping) bool {
	want, _ := p.wanted(h.IQN)
	return p.shown(h) && want.Writes() == h.ReadOnly
}

// shown says that this very mapping stands in the status.
func (p *pass) shown(h v1alpha1.HostMapping) bool {
	return slices.ContainsFunc(p.lu.Status.Hosts, func(o v1alpha1.HostMapping) bool { return o.IQN == h.IQN && o.Generation == h.Generation })
}

// mapHost lets a host in. One whose mapping stands in the status, with the credentials that it has now, is in; after a crash, or a status
// that was lost, the pair is asked again: it gives the mapping that there is, and has the credentials from then on. Sessions that
// are up are not touched by other credentials.
func (p *pass) mapHost(ctx context.Context, want v1alpha1.HostAccess) error {
	iqn := strings.ToLower(want.IQN)
	i := slices.IndexFunc(p.hosts, func(h v1alpha1.HostMapping) bool { return h.IQN == iqn })
	mapped := i >= 0 && p.shown(p.hosts[i])
	if mapped && p.hosts[i].CHAPUser == "" {
		return nil
	}
	c, err := p.credentials(ctx, iqn)
	if err != nil {
		return err
	}
	if mapped && p.hosts[i].CHAPUser == c.Name() {
		return nil
	}
	m, err := rpc(ctx, p, "admit "+iqn, service.MapHost, &targetv1.MapHostRequest{LunUuid: p.lun.Uuid, HostIqn: iqn, ReadOnly: !want.Writes(),
		Exclusive: !p.lu.Spec.Shared || want.Replay, Chap: c.Proto()})
	if err != nil {
		return err
	}
	h := mapping(m)
	h.ReadOnly, h.CHAPUser = !want.Writes(), c.Name()
	p.hosts = append(slices.DeleteFunc(p.hosts, func(o v1alpha1.HostMapping) bool { return o.IQN == iqn }), h)
	return nil
}

// credentials of a host on the LUN's pair; nil: without CHAP.
func (p *pass) credentials(ctx context.Context, iqn string) (*chap.Credentials, error) {
	if p.CHAP == nil {
		return nil, nil
	}
	c, err := p.CHAP.For(ctx, p.lu.Spec.Placement.Pair, iqn)
	switch {
	case errors.Is(err, chap.ErrUnknown), errors.Is(err, chap.ErrTwice):
		return nil, finding.Wait(v1alpha1.ReasonNotEnrolled, "admit %s: %v", iqn, err)
	case errors.Is(err, chap.ErrDamaged), errors.Is(err, chap.ErrCluster):
		return nil, finding.Wait(v1alpha1.ReasonNotConfirmed, "admit %s: %v", iqn, err)
	}
	return c, err
}
