package node

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// moveEvery is how often the work on an entry reports progress, well within Dm.
const moveEvery = time.Second

// moving reports to the machine that the work on an entry makes progress, until the function that
// it returns is called: files may be copied, as snapshots are where they share no extents, or be
// removed, and commands end in their own time (R9).
func (n *Node) moving() (over func()) {
	end := make(chan struct{})
	n.run.tasks.Go(taskLog, func() {
		t := time.NewTicker(moveEvery)
		defer t.Stop()
		for {
			select {
			case <-end:
				return
			case <-n.run.ctx.Done():
				return
			case <-t.C:
				n.do(func(m *pair.Machine, now int64) { m.AppendMoves(now) })
			}
		}
	})
	return func() { close(end) }
}

// unitInfos lists units for the machine. The caller holds md.mu.
func (n *Node) unitInfos() []pair.UnitInfo {
	out := []pair.UnitInfo{}
	for _, l := range n.md.state.LUNs {
		id, err := parseID(l.UUID)
		owner, err2 := pair.ParseNode(l.Owner)
		if err == nil && err2 == nil {
			out = append(out, pair.UnitInfo{ID: id, Owner: owner, Seq: l.Seq, Size: l.Size, Group: n.group(l.Volume)})
		}
	}
	return out
}

// group is a backing volume's number: writes to one of them are paced together.
func (n *Node) group(volume string) uint8 {
	for i, v := range n.store.Volumes() {
		if v.Name() == volume {
			return uint8(i)
		}
	}
	return 0 // the default one, whose name is left out
}

func fileOutcome(err error) (meta.Outcome, scsi.Result) {
	if errors.Is(err, store.ErrNoSpace) {
		return meta.Outcome{Code: "exhausted", Error: err.Error()}, scsi.NoSpace
	}
	return meta.Outcome{Code: "internal", Error: err.Error()}, scsi.Failed
}

// tellHosts raises the unit attentions of an entry on this node's nexuses.
func (n *Node) tellHosts(fx *meta.Effect) {
	if fx.Resized != nil {
		if e := n.entryOf(fx.Resized.UUID); e != nil {
			e.both(func(u *scsi.Unit) { n.raise(u, nil, nil, scsi.AttnCapacityChanged) })
		}
	}
	if e := n.entryOf(fx.PRLUN); e != nil {
		for _, ua := range fx.UAs {
			for _, u := range []*scsi.Unit{e.rw, e.ro} {
				n.raise(u, nil, func(id scsi.NexusID) bool { return id == ua.Nexus }, ua.Attention)
			}
		}
	}
	if e := n.entryOf(fx.ModeLUN); e != nil {
		e.both(func(u *scsi.Unit) { n.raise(u, &fx.By, nil, scsi.AttnModeChanged) })
	}
	for _, id := range fx.PreferredLUNs {
		if e := n.entryOf(id); e != nil && !slices.Contains(fx.Moved, id) { // one that has moved has its attention
			e.both(func(u *scsi.Unit) { n.raise(u, nil, nil, scsi.AttnALUAChanged) })
		}
	}
	if hosts := slices.Concat(fx.Hosts, fx.Fence); fx.MapsChanged && len(hosts) > 0 { // the others see what they saw
		n.raise(nil, nil, func(id scsi.NexusID) bool { return slices.Contains(hosts, id.Initiator) }, scsi.AttnLUNsChanged)
	}
}

// waitEnds calls done when every command that the entry ends on this node has ended or will never
// start (R11c).
func (n *Node) waitEnds(fx *meta.Effect, done func()) {
	n.abortGathering(fx)
	var wg sync.WaitGroup
	abort := func(f func(done func())) {
		wg.Add(1)
		f(wg.Done)
	}
	if e := n.entryOf(fx.FenceLUN); e != nil {
		for _, host := range fx.Fence {
			e.both(func(u *scsi.Unit) { abort(func(d func()) { n.scsi.AbortNexusUnit(host, u, d) }) })
		}
	}
	if e := n.entryOf(fx.PRLUN); e != nil {
		for _, id := range fx.Aborts {
			e.both(func(u *scsi.Unit) { abort(func(d func()) { n.scsi.AbortNexus(id, u, d) }) })
		}
	}
	if r := fx.Reset; r != nil {
		code := scsi.AttnUnitReset
		units := []*unitEntry{n.entryOf(r.UUID)}
		if r.Scope == scsi.ResetTarget {
			code = scsi.AttnTargetReset
			units = n.seenBy(r.By.Initiator)
		}
		for _, e := range units {
			if e == nil {
				continue
			}
			e.both(func(u *scsi.Unit) {
				abort(func(d func()) { n.scsi.AbortUnitFor(u, r.By, d) })
				n.raise(u, &r.By, nil, code)
			})
		}
	}
	wg.Wait()
	done()
}

// seenBy lists the units that are mapped to a host: what its resets reach.
func (n *Node) seenBy(host string) (list []*unitEntry) {
	for _, e := range n.md.tables.Load().units {
		if _, ok := e.lun.Maps[host]; ok {
			list = append(list, e)
		}
	}
	return list
}

// abortGathering ends the writes of affected hosts whose data has not all come, which the device
// server has not seen yet. It comes first: what completes meanwhile is then found by the device
// server.
func (n *Node) abortGathering(fx *meta.Effect) {
	t := n.md.tables.Load()
	sees := func(host string, field uint64, uuid string) bool {
		number, ok := scsi.FlatLUN(field)
		if !ok {
			return false
		}
		if fenced, was := fx.FenceNumbers[host]; was && fenced == number && fx.FenceLUN == uuid {
			return true
		}
		h := t.hosts[host]
		return h != nil && h.luns[number] != nil && h.luns[number].UUID() == uuid
	}
	switch {
	case len(fx.FenceNumbers) > 0:
		n.iscsi.AbortGathering(func(host string, field uint64) bool {
			_, was := fx.FenceNumbers[host]
			return was && sees(host, field, fx.FenceLUN)
		})
	case len(fx.Aborts) > 0:
		n.iscsi.AbortGathering(func(host string, field uint64) bool {
			return sees(host, field, fx.PRLUN) && slices.ContainsFunc(fx.Aborts, func(id scsi.NexusID) bool { return id.Initiator == host })
		})
	case fx.Reset != nil:
		uuids := []string{fx.Reset.UUID}
		if fx.Reset.Scope == scsi.ResetTarget {
			uuids = uuids[:0]
			for _, e := range n.seenBy(fx.Reset.By.Initiator) {
				uuids = append(uuids, e.lun.UUID)
			}
		}
		n.iscsi.AbortGathering(func(host string, field uint64) bool {
			return slices.ContainsFunc(uuids, func(uuid string) bool { return sees(host, field, uuid) })
		})
	}
}

// killGathering ends a host's writes to a LUN whose data has not all come, before a path switch:
// they have not started, and what is still to come of them may belong to a path that the host has
// given up (R11a).
func (n *Node) killGathering(host string, id pair.LUNID) {
	e := n.md.tables.Load().units[id]
	if e == nil {
		return
	}
	m, ok := e.lun.Maps[host]
	if !ok {
		return
	}
	n.iscsi.AbortGathering(func(initiator string, field uint64) bool {
		number, ok := scsi.FlatLUN(field)
		return ok && initiator == host && number == m.LUN
	})
}

// export gives the joiner everything; ActExport comes only while no entry is being applied.
func (n *Node) export() {
	n.md.mu.Lock()
	index := n.md.state.Index
	s := n.md.state
	if !n.peerKnows(featureOwnership) {
		s = s.Before()
	}
	if !n.peerKnows(featureGroups) {
		s = s.WithoutGroups()
	}
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain data
	}
	objs := n.objectsLocked(true)
	n.copies.lists(nil)
	volumes := n.md.state.Volumes()
	n.md.mu.Unlock()
	if n.misread(volumes) {
		// What it cannot read it refuses, and comes again.
		n.log.Warn("the other node's release supports one backing volume only, but LUNs are in more: upgrade the other node")
		raw = []byte(`"LUNs lie in backing volumes that this release does not know: upgrade it"`)
	}
	var sum []byte
	if n.peerKnows(featureParts) {
		x := sha256.Sum256(raw)
		sum = x[:]
	}
	n.do(func(m *pair.Machine, now int64) { m.SendMeta(now, index, raw, sum, objs) })
}
