package logicalunit

import (
	"context"
	"errors"
	"slices"
	"strings"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/index"
	"github.com/gemel-storage/gemel/internal/hostprofile"
)

// readMappings sets the hosts from the mappings of the pair. A target of an earlier release does
// not report whether a mapping is read-only, and no target reports its credentials: both are kept
// in the status, for the generation of the mapping.
func (p *pass) readMappings() {
	p.listed, p.hosts = true, nil
	for _, m := range p.lun.GetMappings() {
		h := mapping(m)
		for _, old := range p.lu.Status.Hosts {
			if old.IQN != h.IQN || old.Generation != h.Generation {
				continue
			}
			h.CHAPUser, h.AttachMode, h.Profile = old.CHAPUser, old.AttachMode, old.Profile
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

// setAttachModes copies the attach mode of each host from its Host object; a host with an attached
// LUN cannot change it. On an error the modes stay as they are: nothing depends on them.
func (p *pass) setAttachModes(ctx context.Context) {
	if len(p.hosts) == 0 {
		return
	}
	for i := range p.hosts {
		if h, err := p.host(ctx, p.hosts[i].IQN); err == nil && h != nil {
			p.hosts[i].AttachMode = h.Spec.AttachMode
		}
	}
}

// host is the Host of an iSCSI name in lower case, from the cache: it must not be changed. nil: it
// is not a worker.
func (p *pass) host(ctx context.Context, iqn string) (*v1alpha1.Host, error) {
	list, err := index.Hosts(ctx, p, iqn)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	first := slices.MinFunc(list, func(a, b v1alpha1.Host) int { return strings.Compare(a.Name, b.Name) })
	return &first, nil
}

// wanted returns the access of a host according to the spec; the pair has IQNs in lower case.
func (p *pass) wanted(iqn string) (v1alpha1.HostAccess, bool) {
	if h := p.lu.Spec.Host(iqn); h != nil {
		return *h, true
	}
	return v1alpha1.HostAccess{}, false
}

// reconcileHosts maps the hosts of the spec and no others. Other hosts are fenced first: a LUN that
// is not shared never has two hosts. If one host cannot be fenced, the others still are, but no
// host is mapped before all are fenced.
func (p *pass) reconcileHosts(ctx context.Context) error {
	if err := p.fence(ctx); err != nil {
		return err
	}
	var errs []error
	for _, h := range p.lu.Spec.Hosts {
		errs = append(errs, p.mapHost(ctx, h))
	}
	return errors.Join(errs...)
}

// fence unmaps hosts that the spec does not list, or lists with another readOnly. A host is removed
// from p.hosts, and so from the status, only after the pair has confirmed that no command of the
// host is running or will be accepted.
func (p *pass) fence(ctx context.Context) error {
	var errs []error
	for _, h := range slices.Clone(p.hosts) {
		if _, ok := p.wanted(h.IQN); ok && !p.modeDiffers(h) {
			continue
		}
		if _, err := change(ctx, p, "fence host "+h.IQN, service.UnmapHost, &targetv1.UnmapHostRequest{LunUuid: p.lun.Uuid, HostIqn: h.IQN}); err != nil {
			errs = append(errs, err)
			continue
		}
		p.hosts = slices.DeleteFunc(p.hosts, func(o v1alpha1.HostMapping) bool { return o.IQN == h.IQN })
	}
	return errors.Join(errs...)
}

// modeDiffers reports whether a host is mapped with another readOnly than the spec says, as far as
// it is known. This includes a host that has replayed a log: its writes end before another host is
// mapped.
func (p *pass) modeDiffers(h v1alpha1.HostMapping) bool {
	want, _ := p.wanted(h.IQN)
	return p.inStatus(h) && want.Writes() == h.ReadOnly
}

// inStatus reports whether the status has this mapping.
func (p *pass) inStatus(h v1alpha1.HostMapping) bool {
	return slices.ContainsFunc(p.lu.Status.Hosts, func(o v1alpha1.HostMapping) bool { return o.IQN == h.IQN && o.Generation == h.Generation })
}

// mapHost maps a host. A host whose mapping is in the status, with its current credentials, is
// mapped; after a crash or a lost status, the request is repeated: the pair returns the existing
// mapping and uses the credentials and the profile from then on. Changed credentials do not affect
// established sessions.
func (p *pass) mapHost(ctx context.Context, want v1alpha1.HostAccess) error {
	iqn := strings.ToLower(want.IQN)
	i := slices.IndexFunc(p.hosts, func(h v1alpha1.HostMapping) bool { return h.IQN == iqn })
	host, err := p.host(ctx, iqn)
	if err != nil {
		return err
	}
	profile := profileOf(host)
	known := i >= 0 && p.inStatus(p.hosts[i])
	mapped := known && p.hosts[i].Profile == profile
	byName := known && p.hosts[i].CHAPUser == "" // it logs in without credentials until it is mapped again
	if mapped && byName {
		return nil
	}
	var c *chap.Credentials
	if !byName {
		if c, err = p.credentials(ctx, iqn); err != nil {
			return err
		}
	}
	if mapped && p.hosts[i].CHAPUser == c.Name() {
		return nil
	}
	m, err := change(ctx, p, "map host "+iqn, service.MapHost, &targetv1.MapHostRequest{LunUuid: p.lun.Uuid, HostIqn: iqn, ReadOnly: !want.Writes(),
		Exclusive: !p.lu.Spec.Shared || want.Replay, Chap: c.Proto(), Profile: profile, Near: p.nearHost(ctx, host)})
	if err != nil {
		return err
	}
	h := mapping(m)
	h.ReadOnly, h.CHAPUser, h.Profile = !want.Writes(), c.Name(), profile
	p.hosts = append(slices.DeleteFunc(p.hosts, func(o v1alpha1.HostMapping) bool { return o.IQN == iqn }), h)
	return nil
}

// profileOf is the profile that is set on a Host; empty: Auto, or there is no Host.
func profileOf(h *v1alpha1.Host) string {
	if h == nil || h.Spec.Profile == string(hostprofile.Auto) {
		return ""
	}
	return h.Spec.Profile
}

// credentials of a host on the LUN's pair; nil without CHAP.
func (p *pass) credentials(ctx context.Context, iqn string) (*chap.Credentials, error) {
	if p.CHAP == nil {
		return nil, nil
	}
	c, err := p.CHAP.For(ctx, p.lu.Spec.Placement.Pair, iqn)
	switch {
	case errors.Is(err, chap.ErrUnknown), errors.Is(err, chap.ErrTwice):
		return nil, finding.Wait(v1alpha1.ReasonNotEnrolled, "map host %s: %v", iqn, err)
	case errors.Is(err, chap.ErrDamaged), errors.Is(err, chap.ErrCluster):
		return nil, finding.Wait(v1alpha1.ReasonNotConfirmed, "map host %s: %v", iqn, err)
	}
	return c, err
}
