package pair

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/rangelock"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Machine is one node's side of the protocol. It is not safe for concurrent use.
type Machine struct {
	cfg Config
	out []Action

	// Membership (membership.go).
	phase     Phase
	reason    string
	leave     leaving
	rec       Record
	version   string
	have      bool  // rec was read
	recAt     int64 // when its epoch was seen first
	missing   bool  // the arbiter says that there is none
	arb       arbiter
	excl      exclusion
	since     int64         // start of the present phase
	watchAt   int64         // a lone member reads the record again (watch.go)
	wasAlone  bool          // when it was fenced for the record: what it acknowledged may be on its store only
	peerEnded []Incarnation // processes of the peer that its supervisor has reaped, the latest last (testimony.go)
	holdTill  int64         // alone, and the node that was replaced may not know it yet: nothing is served before
	unsure    uint64        // alone: the call of the arbiter that confirms this node; 0: none has to
	renewing  bool          // the lone member that is being replaced is a former life of this node, which may not be over
	decided   int64         // last moment this node was serving, Outside or Fenced; else undecided since then
	straggle  int           // applications for the peer begun under an older epoch (R4)
	exposed   int           // flushes still due after becoming alone
	flushes   int           // of everything, under way
	claimed   claimState
	saved     durable
	lookedAt  int64 // when a fenced node last read the record again
	// recordBack: the record that was lost is there again.
	recordBack bool
	force      forceState

	link  linkState
	lease leaseState
	clock clockState

	// Commands (write.go, partner.go).
	units    map[LUNID]*unit
	snaps    unit           // of ranges of snapshots, which no host writes and no table names
	order    []*unit        // sorted, nil when stale
	ops      map[uint64]*Op // started ops that await the peer
	nextID   uint64
	due      due
	applying int        // store work for the peer under way
	owed     chain[Msg] // that of it which the owner waits for (owed.go)
	probing  peerProbe
	storeOps int // our own
	pacers   [maxGroups]pacer

	fwd       forwarding
	hosts     hostPaths
	quiescing quiescing

	ckpt     ckptState
	follow   *follower
	followed uint64 // the last one that this node took part in
	marking  bool   // the entry that says what was lost is on its way (R8)
	faults   faults // of the peer's store
	distrust string // the peer's store that failed, until it has been copied to
	scrub    scrubState
	scrubs   uint64 // counts them

	log    logState
	resync resyncState
	plan   *copyPlan
	// ActInstall is under way: this node serves nothing and does not claim before it is known which
	// metadata it has.
	installing bool
	refusal    string // why the metadata could not be sent, while that is so
	copies     uint64 // counts resyncs: a copy of an earlier one is nothing to the present one

	// Stats count what happened, for metrics and the simulator's coverage.
	Stats Stats
}

// due is what became possible, in its order, until settle looks at it.
type due struct {
	granted []*Op  // locks that were granted
	applies []*Msg // the same of the peer's writes
	again   []*Op  // held commands to look at again

	// What range locks call, made once: a closure for each command would be an allocation.
	lockGranted, applyGranted func(*rangelock.Request)
}

func (d *due) init() {
	d.lockGranted = func(r *rangelock.Request) { d.granted = append(d.granted, r.Of.(*Op)) }
	d.applyGranted = func(r *rangelock.Request) { d.applies = append(d.applies, r.Of.(*Msg)) }
}

// leaving is why and since when this node consents to be excluded; empty: it does not.
type leaving struct {
	why    string
	at     int64
	failed bool // because its store failed
}

// durable is what is known to be on this node's disk of its own state.
type durable struct {
	epoch   uint64
	saving  bool   // ActSaveEpoch under way
	state   State  // durable with the highest number saved
	stateID uint64 // of the last save that was begun
	waits   []saveWait
	last    [afterSaves]uint64 // the last save, by what waits for it
}

// Stats are counters since the start of the process.
type Stats struct {
	Excludes, Readmits, Relinks, Fences    uint64
	Forwarded, Mirrored, Repaired, Aged    uint64
	PathSwitches, Held, Transfers, NoSpace uint64
	ResyncBytes, ResyncCompared            uint64
	LeaseLapses, StaleMessages             uint64
	Intents, ColdWrites                    uint64 // bitmap writes; writes that met a cold region
	Checkpoints, Cleared                   uint64 // completed here as owner; regions cleared
	PartialResyncs, FullResyncs, Resumes   uint64 // resyncs begun
	Lost, Forced, RolledBack, Yields       uint64
	Proofs                                 uint64 // signs of life that were waited for
	ClockSteps                             uint64 // of the wall clock that made this node wait
	Signed                                 uint64 // writes forwarded for an older sign of life
	Cancelled                              uint64 // mirrored writes of an older record that had not begun
	ScrubCompared                          uint64 // bytes
	ScrubMismatches, ScrubRepaired         uint64 // ranges
	Healed, LostBlocks                     uint64 // runs of damaged blocks (R15): healed here, or asked for and good nowhere
	HealedFromJoiner                       uint64 // of Healed, those of a lone source
	Paced                                  uint64 // writes that waited for room in the window
	Overwritten                            uint64 // writes that waited for their host, which had written there over another session (R11e)
	Testified                              uint64 // of Excludes, those for which the peer's supervisor had testified
	SlowLeaves, SlowExcludes               uint64 // for slowness: this node stepped down, or excluded its peer
	BothLate                               uint64 // checks at which both nodes were late: neither leaves
}

// New makes a machine; call Start next.
func New(cfg Config) *Machine {
	cfg.defaults()
	m := &Machine{
		cfg: cfg, snaps: unit{owner: cfg.Self}, units: map[LUNID]*unit{}, ops: map[uint64]*Op{},
		saved: durable{epoch: cfg.DurableEpoch, state: cfg.State}, lease: leaseState{answered: cfg.Start},
		fwd:       forwarding{done: map[uint64]scsi.Result{}, in: map[uint64]*Op{}},
		hosts:     hostPaths{asks: map[uint64]*pathAsk{}, table: map[pathKey]map[scsi.NexusID]bool{}, proving: map[*scsi.Liveness]int64{}, latest: map[pathKey]*latest{}},
		quiescing: quiescing{open: map[uint64]*quiesce{}}, log: logState{index: cfg.LogIndex, open: map[uint64]*Proposal{}, done: map[uint64]proposeDone{}},
	}
	m.due.init()
	return m
}

// Start reads the record.
func (m *Machine) Start(now int64) {
	m.since, m.decided, m.lease.heard = now, now, now
	m.get(now)
	m.settle(now)
}

// Take hands out the actions that are due; the slice passed in is reused.
func (m *Machine) Take(reuse []Action) []Action {
	out := m.out
	m.out = reuse[:0]
	return out
}

// Pending reports whether Take would return anything.
func (m *Machine) Pending() bool { return len(m.out) > 0 }

func (m *Machine) act(a Action) { m.out = append(m.out, a) }

func (m *Machine) event(format string, args ...any) {
	m.act(Action{Kind: ActEvent, Text: fmt.Sprintf(format, args...)})
}

// damageEvent is an event that tells what became of damaged blocks, for those who count them too.
func (m *Machine) damageEvent(d *Damage, format string, args ...any) {
	m.act(Action{Kind: ActEvent, Text: fmt.Sprintf(format, args...), Damage: d})
}

func (m *Machine) send(msg *Msg) {
	if !m.link.up {
		return
	}
	msg.Epoch = m.rec.Epoch
	m.act(Action{Kind: ActSend, Msg: msg})
}

// settle runs what became possible: granted locks, the log, quiet points.
func (m *Machine) settle(now int64) {
	for len(m.due.granted) > 0 {
		op := m.due.granted[0]
		m.due.granted = m.due.granted[1:]
		m.run(now, op)
	}
	m.due.granted = m.due.granted[:0]
	for len(m.due.applies) > 0 {
		msg := m.due.applies[0]
		m.due.applies = m.due.applies[1:]
		m.applyHot(now, msg)
	}
	m.due.applies = m.due.applies[:0]
	for len(m.due.again) > 0 {
		o := m.due.again[0]
		m.due.again = m.due.again[1:]
		if o.stage == stHeld {
			m.dispatch(now, o)
		}
	}
	m.due.again = m.due.again[:0]
}

// unit is a logical unit as the protocol sees it.
type unit struct {
	id       LUNID
	owner    Node
	seq      uint64
	locks    rangelock.Table // of the owner
	applies  rangelock.Table // of the partner: mirrored writes in order
	ops      chain[Op]
	quiesced int // commands are held while above zero
	started  int // ops that may touch the medium
	kept     int // commands that change data are held while above zero
	changing int // ops that may change data
	size     int64
	intents  intents
	group    uint8 // backing volume
	paced    []*Op // writes that wait for the window
	starts   starts
	wrote    *wrote // nil unless a host writes over several sessions (R11e)
}

// UnitInfo is what the metadata says of a unit.
type UnitInfo struct {
	ID    LUNID
	Owner Node
	Seq   uint64 // of the ownership; the highest wins (R10)
	Size  int64  // bytes
	Group uint8  // backing volume: writes to one of them are paced together
}

// SetUnits replaces the table of units by what the applied metadata says. Ops of a unit that is
// gone end.
func (m *Machine) SetUnits(now int64, infos []UnitInfo) {
	seen := make(map[LUNID]bool, len(infos))
	var moved bool
	for _, in := range infos {
		seen[in.ID] = true
		u := m.units[in.ID]
		if u == nil {
			u = &unit{id: in.ID, owner: in.Owner, seq: in.Seq, size: in.Size, group: in.Group, starts: unknownStarts(now)}
			m.units[in.ID] = u
			continue
		}
		u.size, u.group = in.Size, in.Group
		if in.Seq > u.seq {
			moved = moved || u.owner != in.Owner
			if u.owner != in.Owner {
				m.act(Action{Kind: ActALUA, LUN: u.id})
			}
			u.owner, u.seq = in.Owner, in.Seq
			u.starts = unknownStarts(now)
			m.ownedFurther(u)
		}
	}
	for id, u := range m.units {
		if seen[id] {
			continue
		}
		delete(m.units, id) // first: its ops end because it is gone
		for o := range u.ops.all() {
			m.abandon(now, o, scsi.Unavailable)
		}
	}
	if moved {
		m.Stats.Transfers++
	}
	m.order = nil
	m.pump(now)
}

// sortedUnits lists the units in a fixed order, so that a run can be replayed.
func (m *Machine) sortedUnits() []*unit {
	if m.order == nil && len(m.units) > 0 {
		for _, u := range m.units {
			m.order = append(m.order, u)
		}
		slices.SortFunc(m.order, func(a, b *unit) int { return bytes.Compare(a.id[:], b.id[:]) })
	}
	return m.order
}

// Tick lets time pass; call it at least every Heartbeat/2.
func (m *Machine) Tick(now int64) {
	m.tickLink(now)
	m.tickMembership(now)
	m.holds(now)
	m.tickOps(now)
	m.tickResync(now)
	m.tickCheckpoint(now)
	m.scrubNext(now)
	m.tickProofs(now)
	m.tickPaths(now)
	m.tickBeside(now)
	m.settle(now)
}

// SetNexuses sets how many hosts are logged in here: a node without any lets the other exclude
// first (R3).
func (m *Machine) SetNexuses(n int) { m.hosts.nexuses = n }

// Serving reports whether a status may be sent at this moment (R1, R3).
func (m *Machine) Serving(now int64) bool {
	if m.saved.saving || m.installing || m.straggle > 0 || m.leave.why != "" && m.phase != Alone {
		return false
	}
	switch m.phase {
	case Alone:
		// R1b and R1c: the write path makes it durable. While a readmission is unresolved the peer
		// may already be a member; it gives us at least a lease before it could exclude us. Before
		// the arbiter was asked it cannot.
		return m.holdTill == 0 && m.unsure == 0 && (m.resync.stage != rsAdmit || !m.resync.asked || now < m.resync.admitAt+int64(m.cfg.Lease)/2)
	case Paired:
		return m.link.agreed && !m.excl.active && now < m.lease.until
	}
	return false
}

// Access is what a front end tells hosts about commands that need no medium.
func (m *Machine) Access(now int64) scsi.Access {
	switch {
	case m.Serving(now):
		return scsi.AccessReady
	case m.phase == Outside || m.phase == Fenced || now-m.decided > 2*int64(m.cfg.HoldMax):
		return scsi.AccessUnavailable
	}
	return scsi.AccessTransitioning
}

// Pausing reports whether this node has been undecided for so short a time that all commands since
// are held, and none of them was answered BUSY.
func (m *Machine) Pausing(now int64) bool {
	return m.Access(now) == scsi.AccessTransitioning && now-m.decided < int64(m.cfg.HoldMax)
}

// owns reports whether commands of u are executed here.
func (m *Machine) owns(u *unit) bool {
	return m.phase == Alone || m.phase == Paired && u.owner == m.cfg.Self
}

// mirrors reports whether a write goes to the peer as well: as a member, or as a joiner that is
// being copied to.
func (m *Machine) mirrors() bool { return m.phase == Paired || m.phase == Alone && m.resync.mirror }

// View is a snapshot of the machine's state, for status and metrics.
type View struct {
	Phase      Phase
	Reason     string
	Record     Record
	Linked     bool
	Agreed     bool
	Excluding  bool
	LogIndex   uint64
	Since      int64
	LeaseUntil int64
	Exposed    bool
	Resync     ResyncView
	Scrub      ScrubView
	Peer       SyncInfo
	Leaving    bool
	Over       string // why this life is over, see Machine.Over
	Serving    bool   // a status may be sent at this moment
	Check      Checkpoint
	ForceEpoch uint64 // what an administrator has to name to have this node take over by force; 0: it cannot
}

// View reads the state.
func (m *Machine) View(now int64) View {
	return View{Phase: m.phase, Reason: m.reason, Record: m.rec, Linked: m.link.up, Agreed: m.link.agreed,
		Excluding: m.excl.active, LogIndex: m.log.index, Since: m.since, LeaseUntil: m.lease.until,
		Exposed: m.exposed > 0, Resync: m.resync.view, Scrub: m.scrub.look(now), Peer: m.link.peer, Leaving: m.leave.why != "", Over: m.Over(now),
		Serving: m.Serving(now), Check: m.saved.state.Check, ForceEpoch: m.forceEpoch()}
}

// HotRegions counts the regions whose bits are set here, of all units.
func (m *Machine) HotRegions() (n int) {
	for _, u := range m.units {
		n += u.intents.hot.Count()
	}
	return n
}

// Owner returns the node that owns a unit now.
func (m *Machine) Owner(id LUNID) (Node, bool) {
	u := m.units[id]
	if u == nil {
		return 0, false
	}
	if m.phase == Alone {
		return m.cfg.Self, true
	}
	return u.owner, true
}
