package node

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/alua"
	"github.com/gemel-storage/gemel/internal/hostprofile"
)

// tables is what the command path reads: an immutable snapshot of the applied metadata.
type tables struct {
	units     map[pair.LUNID]*unitEntry
	snapshots map[pair.LUNID]*store.File
	hosts     map[string]*hostEntry
}

// unitEntry is one LUN. A host that sees it read-only has a device server unit of its own over the
// same medium.
type unitEntry struct {
	id     pair.LUNID
	lun    *meta.LUN
	file   *store.File
	bits   *store.Intents
	rw, ro *scsi.Unit

	misfit bool // its file is not what the metadata says

	behind *atomic.Bool // its checksums could not be made durable for lack of space: bits stay

	readers *readers // of its backing volume
	lane    *lane
	counts  *count.LUN   // of what hosts do with it, since this process has it
	hosts   *count.Hosts // the same for each host that logged in here
	series  *atomic.Bool // it has metrics of its own (lunmetrics.go)
	warmth  *warmth
	tier    *tierUse // nil: its volume has one tier
}

// close closes the files of a LUN.
func (e *unitEntry) close() error { return errors.Join(e.bits.Close(), e.file.Close()) }

func (e *unitEntry) both(f func(*scsi.Unit)) {
	f(e.rw)
	f(e.ro)
}

type hostEntry struct {
	luns map[uint16]*scsi.Unit
	nums []uint16
	chap meta.CHAP
	// profile that the operator has set; empty: recognised by the iSCSI name
	profile hostprofile.Profile
}

// check judges an op when its execution starts (R9): is the host still mapped, may it write, is the
// range inside, does a reservation forbid it; and has it to be durable before its status. It runs
// inside the machine and reads one snapshot only.
func (n *Node) check(s *scsi.Op, id pair.LUNID) scsi.Result {
	e := n.md.tables.Load().units[id]
	if e == nil {
		return scsi.Unavailable
	}
	m, ok := e.lun.Maps[s.Nexus.Initiator]
	switch {
	case !ok:
		return scsi.Unavailable // unmapped meanwhile
	case m.Lost:
		return scsi.LostData
	case e.rw.Quarantined():
		return scsi.Unavailable // it was forwarded before the other node knew
	case e.misfit && s.Kind.Writes():
		return scsi.WriteError
	case e.misfit:
		return scsi.ReadError
	case m.ReadOnly && s.Kind.Writes():
		return scsi.WriteError
	case s.Off < 0 || s.Len < 0 || s.Off+s.Len > e.lun.Size:
		return scsi.OutOfRange
	}
	for _, r := range s.Ranges {
		if r.Off+r.Len > e.lun.Size {
			return scsi.OutOfRange
		}
	}
	if e.rw.PR().Conflict(&s.Nexus, scsi.KindOf(s.Kind)) {
		return scsi.ReservationConflict
	}
	// It may have waited since before the LUN became write-through, or come from a node that had
	// not heard of it.
	if s.Kind.Writes() && e.lun.WriteThrough() {
		s.FUA = true
	}
	return scsi.OK
}

// closeFiles closes what the tables hold, once nothing uses it any more.
func (n *Node) closeFiles() {
	t := n.md.tables.Swap(&tables{})
	for _, e := range t.units {
		if err := e.close(); err != nil {
			n.log.Warn("closing a LUN", "lun", e.lun.UUID, "err", err)
		}
	}
	for _, f := range t.snapshots {
		_ = f.Close()
	}
}

// closeLater closes a file that the tables no longer name, after everyone that found it there is
// done with it.
func (n *Node) closeLater(f func() error) {
	n.run.tasks.Go(taskClose, func() {
		select {
		case <-time.After(10 * time.Second):
		case <-n.run.ctx.Done():
		}
		_ = f()
	})
}

// entry makes or carries over one LUN.
func (n *Node) entry(old *tables, l *meta.LUN) (*unitEntry, error) {
	id, err := parseID(l.UUID)
	if err != nil {
		return nil, err
	}
	prev := old.units[id]
	if prev != nil && prev.lun == l {
		return prev, nil // a LUN that changes is replaced by another (meta.State.Apply): this one has not
	}
	cfg := scsi.UnitConfig{UUID: l.UUID, SizeBytes: l.Size, Thin: true, WriteCache: true}
	roCfg := cfg
	roCfg.ReadOnly = true
	e := &unitEntry{id: id, lun: l, misfit: n.isMisfit(l.UUID)}
	if prev != nil {
		e.file, e.bits, e.rw, e.ro, e.readers, e.lane, e.behind, e.counts, e.hosts, e.series, e.tier = prev.file, prev.bits, prev.rw, prev.ro, prev.readers, prev.lane, prev.behind, prev.counts, prev.hosts, prev.series, prev.tier
		if e.warmth = prev.warmth; l.Owner == n.self.String() && prev.lun.Owner != l.Owner {
			e.warmth.since.Store(n.boottime())
		}
		err = errors.Join(e.rw.Update(cfg), e.ro.Update(roCfg))
		if prev.lun.Size < l.Size {
			err = errors.Join(err, e.bits.Grow(l.Size))
			e.tier = e.tier.grow(l.Size)
		}
	} else {
		var v *store.BackingVolume
		if v, err = n.store.Volume(l.Volume); err != nil {
			return nil, fmt.Errorf("LUN %s: %w", l.UUID, err)
		}
		if e.file, err = v.OpenLUN(l.UUID); err != nil {
			return nil, fmt.Errorf("LUN %s: %w", l.UUID, err)
		}
		if e.bits, err = v.OpenIntents(l.UUID, l.Size); err != nil {
			return nil, errors.Join(err, e.file.Close())
		}
		doubts(e.file, e.bits)
		e.behind, e.counts, e.hosts, e.series, e.warmth = new(atomic.Bool), new(count.LUN), new(count.Hosts), new(atomic.Bool), new(warmth)
		e.tier = n.tiers.use(v, l.Size)
		e.readers, e.lane = n.readersOf(v), &lane{tasks: &n.run.tasks, do: doChanges}
		med := &medium{n: n, id: id}
		if e.rw, err = scsi.NewUnit(cfg, med); err == nil {
			e.ro, err = scsi.NewUnit(roCfg, med)
		}
	}
	if err != nil {
		return nil, err
	}
	quarantined := n.quarantined(l)
	e.both(func(u *scsi.Unit) {
		u.Quarantine(quarantined)
		if u.PR() != l.PR {
			u.SetPR(l.PR)
		}
		// Also when the LUN has none: a node that installs the state of the other one may have had
		// a MODE SELECT that it could not tell the other node of.
		u.SetMode(l.ModeState())
	})
	return e, nil
}

func (n *Node) entryOf(id string) *unitEntry {
	k, err := parseID(id)
	if err != nil {
		return nil
	}
	return n.md.tables.Load().units[k]
}

// Lookup implements scsi.Cluster.
func (n *Node) Lookup(host string, lun uint16) *scsi.Unit {
	if b := n.io.bench.Load(); b != nil && b.host == host && lun == 0 {
		return b.unit
	}
	if h := n.md.tables.Load().hosts[host]; h != nil {
		return h.luns[lun]
	}
	return nil
}

// LUNs implements scsi.Cluster.
func (n *Node) LUNs(host string, to []uint16) []uint16 {
	if b := n.io.bench.Load(); b != nil && b.host == host {
		return append(to, 0)
	}
	if h := n.md.tables.Load().hosts[host]; h != nil {
		return append(to, h.nums...)
	}
	return to
}

// SinglePath implements scsi.Cluster.
func (n *Node) SinglePath(host string) bool {
	var set hostprofile.Profile
	if h := n.md.tables.Load().hosts[host]; h != nil {
		set = h.profile
	}
	p, _ := hostprofile.Effective(set, host)
	return p == hostprofile.QEMU
}

// Admit implements iscsi.Hosts.
func (n *Node) Admit(initiator string) iscsi.Host {
	if b := n.io.bench.Load(); b != nil && b.host == initiator {
		return iscsi.Host{Known: true, LUNs: true, Sure: true}
	}
	// First whether this node serves, then the tables: those of a node that serves have every
	// mapping that was confirmed to a caller by then (R9).
	sure := n.Access() == scsi.AccessReady
	if !sure && n.SinglePath(initiator) {
		return iscsi.Host{} // it holds its commands, and logs in again until a node serves
	}
	h := n.md.tables.Load().hosts[initiator]
	if h == nil {
		return iscsi.Host{Sure: sure}
	}
	c := h.chap
	return iscsi.Host{Known: true, LUNs: len(h.nums) > 0, Sure: sure,
		Credentials: iscsi.Credentials{User: c.User, Secret: c.Secret, MutualUser: c.MutualUser, MutualSecret: c.MutualSecret}}
}

// Groups implements scsi.Cluster. Both nodes give the same answer while they are linked; without
// the peer each tells what it knows.
func (n *Node) Groups(u *scsi.Unit) alua.Report {
	id, err := parseID(u.UUID())
	if err != nil || n.isBench(u) {
		return alua.Report{Groups: []alua.Group{{Tag: uint16(n.self) + 1, State: alua.Optimized, Ports: []uint16{uint16(n.self) + 1}}}}
	}
	now := n.boottime()
	n.mu.Lock()
	v := n.m.View(now)
	access, pausing := n.m.Access(now), n.m.Pausing(now)
	owner, known := n.m.Owner(id)
	n.mu.Unlock()
	preferred := pair.A
	if e := n.md.tables.Load().units[id]; e != nil && e.lun.Preferred == pair.B.String() {
		preferred = pair.B
	}
	r := alua.Report{TransitionTime: 5}
	for _, node := range []pair.Node{pair.A, pair.B} {
		g := alua.Group{Tag: uint16(node) + 1, Ports: []uint16{uint16(node) + 1}, Status: alua.Implicit}
		told := access
		if pausing && node == n.self {
			// Linux sends nothing for two seconds after it has heard of a transition
			// (ALUA_RTPG_RETRY_DELAY). What it sends now is held, and served as soon as it is
			// decided who serves, which takes less than a second.
			told = scsi.AccessReady
		}
		g.State = n.groupState(node, owner, known, v, told)
		g.Preferred = node == preferred && g.State == alua.Optimized // hosts would take a preferred path that is not, too
		r.Groups = append(r.Groups, g)
	}
	return r
}

func (n *Node) groupState(node, owner pair.Node, known bool, v pair.View, access scsi.Access) alua.State {
	if node == n.self {
		switch {
		case access == scsi.AccessUnavailable || !known:
			return alua.Unavailable
		case access == scsi.AccessTransitioning:
			return alua.Transitioning
		case owner == node:
			return alua.Optimized
		}
		return alua.NonOptimized
	}
	switch {
	case v.Phase == pair.Paired && access == scsi.AccessTransitioning:
		return alua.Transitioning
	case v.Phase != pair.Paired:
		return alua.Unavailable
	case owner == node:
		return alua.Optimized
	}
	return alua.NonOptimized
}

// aluaChanged raises the unit attention of a changed access state on every nexus of this node
// (SPC-4 §5.15.2.4), for one LUN or, with the zero id, for all.
func (n *Node) aluaChanged(id pair.LUNID) {
	tell := func(e *unitEntry) {
		e.both(func(u *scsi.Unit) { n.raise(u, nil, nil, scsi.AttnALUAChanged) })
	}
	units := n.md.tables.Load().units
	if id == (pair.LUNID{}) {
		for _, e := range units {
			tell(e)
		}
	} else if e := units[id]; e != nil {
		tell(e)
	}
	n.waits.standing.changed()
}

func (n *Node) raise(u *scsi.Unit, except *scsi.NexusID, only func(scsi.NexusID) bool, a scsi.Attention) {
	n.scsi.RaiseUA(u, except, only, byte(a>>8), byte(a))
}
