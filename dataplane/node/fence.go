package node

import (
	"context"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// UnmapHost takes a LUN from a host, or from all with an empty name, and returns when nothing of
// theirs can happen to it any more. A registration that one of their commands had on its way into
// the log when the entry ended it comes after the entry, and is taken out then, unless the host has
// the LUN again by now.
func (n *Node) UnmapHost(ctx context.Context, lun, host string) error {
	if _, err := n.propose(ctx, &meta.Entry{UnmapHost: &meta.UnmapHost{UUID: lun, Host: host}}); err != nil {
		return err
	}
	if err := n.awaitEarlier(); err != nil {
		return err
	}
	for _, left := range n.strangers(lun) {
		if host != "" && left != host {
			continue
		}
		e := &meta.Entry{PR: &meta.PR{UUID: lun, Nexus: scsi.NexusID{Initiator: left}, Req: scsi.PROut{Action: scsi.PRUnmap}}}
		if _, err := n.propose(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// strangers lists hosts that hold a registration or reservation of a LUN that is not mapped to
// them.
func (n *Node) strangers(lun string) (hosts []string) {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	l := n.md.state.LUNs[lun]
	if l == nil || l.PR == nil {
		return nil
	}
	for _, host := range l.PR.Hosts() {
		if _, ok := l.Maps[host]; !ok {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
