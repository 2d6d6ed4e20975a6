package pair

import (
	"time"

	"github.com/gemel-storage/gemel/dataplane/rangelock"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Phase is the state of a node in the pair protocol.
type Phase uint8

// Phases.
const (
	Starting Phase = iota // the record is not read yet, or there is none and the nodes have not met
	Paired                // the record names both nodes and this incarnation
	Alone                 // the record names this node only
	Outside               // the record does not name this incarnation: waiting to be readmitted
	Fenced                // never acts again in this life, unless an administrator forces it: the reason says what to do
)

// String is the phase as metrics name it.
func (p Phase) String() string {
	return [...]string{"starting", "paired", "alone", "outside", "fenced"}[p]
}

// Text is the phase as texts for people name it.
func (p Phase) Text() string {
	if p == Paired {
		return "in sync"
	}
	return p.String()
}

// Config is the configuration of a Machine. Durations are bounds promised by the runtime's clock
// (R3).
type Config struct {
	Self          Node
	Cluster, Pair string
	Store         string      // id of this node's store
	Incarnation   Incarnation // of this process
	Lock          string      // the file that this process holds the store's lock by, as the operating system names it: device, inode
	DurableEpoch  uint64      // last epoch made durable here
	LogIndex      uint64      // of the durable metadata
	Empty         bool        // no LUN was ever made in this store
	Untrusted     string      // why the store must not be a source: a write or flush failed in an earlier life (R12)
	Misfits       string      // what files are not what the metadata says, "" if all are: the runtime serves no such object (R12)
	State         State       // as it was saved last
	Known         *Record     // the record that DurableEpoch is of, nil if there is none
	Acted         *Record     // the last one that named the process which made it durable, nil if there is none
	Start         int64       // CLOCK_BOOTTIME in ns at process start

	Lease     time.Duration // T, default 500 ms
	Margin    time.Duration // added by an excluder for rate drift, default Lease/50 + 5 ms
	Heartbeat time.Duration // interval, default Lease/10
	// Polite is how much longer a node that has hosts and is not preferred waits when neither hears
	// the other, so that as a rule the preferred node is the one that stays; default Lease/20.
	Polite time.Duration
	// How often a lone member reads the record, default 2 s, and how long one call of the arbiter
	// takes at most, default 1 s. Their sum bounds for how long it serves after the record names
	// another node (R2), as long as the arbiter answers it.
	RecordEvery time.Duration
	ArbiterMax  time.Duration
	MirrorMax   time.Duration // Dm, default 5 s: a peer or a disk that hangs while heartbeats continue (slow.go)
	AgeMax      time.Duration // D, default 1 s
	Granule     int64         // bytes of a range of which R11e remembers who wrote there, default 4096
	HoldMax     time.Duration // how long a command waits undecided, default 3 s
	LeaveMax    time.Duration // how long a node that leaves waits for its exclusion before its life is over, default 5 s
	// When the owner of a LUN begins a checkpoint (R7): no write for Idle, or Every after it became
	// due, whatever the load, or so many regions hot; never sooner than Idle after the last one.
	// Dirty bytes written to all its LUNs have it flush the one with most of them, on both nodes.
	CheckpointIdle  time.Duration // default 5 s
	CheckpointEvery time.Duration // default 30 s
	CheckpointDirty int64         // default 32 MiB: bounds what a node that becomes alone has to flush
	CheckpointHot   int           // default 1024: bounds what a resync has to compare

	// Writes of hosts to one backing volume are paced (pace.go): the window, in bytes, at the start
	// and its bounds, and what a write may take, the peer's part included, before the window is
	// made smaller.
	Window, WindowMin, WindowMax int64         // defaults 8, 1 and 32 MiB
	WriteTime                    time.Duration // default 250 ms

	Region    int64 // bytes that one bit of the write-intent bitmap covers, default 4 MiB (R7)
	Block     int64 // bytes that one checksum is of, default 4 KiB: locks are of whole blocks (R15)
	Sums      bool  // this node keeps checksums of blocks (R15)
	Preferred bool  // this node excludes first when neither hears the other

	// Alloc gives the buffer of a read that the other node has asked for; it may be used again when
	// the MsgForwardResult that has it was sent. Default make.
	Alloc func(n int64) []byte
	// Msg gives a message that is as Reset leaves it, for what goes with every command: mirrored
	// writes, forwarded commands, and the answers to both. The machine does not refer to one that
	// it has sent, nor to a mirrored write that it was told the end of (Applied), so the runtime
	// may use those again. Default new.
	Msg func() *Msg
	// Op gives an op that is as Reset leaves it, for a command that the other node forwards. The
	// runtime may use it again once it has begun the actions that came before the message that
	// names it as Ended. Default new.
	Op func() *Op

	// Check judges an op at the moment its execution starts, under its lock (R9): reservations,
	// host map, size. It must be a pure read of applied metadata.
	Check func(*scsi.Op, LUNID) scsi.Result
}

func (c *Config) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Lease, 500*time.Millisecond)
	def(&c.Margin, c.Lease/50+5*time.Millisecond)
	def(&c.Heartbeat, c.Lease/10)
	def(&c.Polite, c.Lease/20)
	def(&c.RecordEvery, 2*time.Second)
	def(&c.ArbiterMax, time.Second)
	def(&c.MirrorMax, 5*time.Second)
	def(&c.AgeMax, time.Second)
	if c.Granule == 0 {
		c.Granule = 4096
	}
	def(&c.HoldMax, 3*time.Second)
	def(&c.LeaveMax, 5*time.Second)
	def(&c.CheckpointIdle, 5*time.Second)
	def(&c.CheckpointEvery, 30*time.Second)
	if c.CheckpointDirty == 0 {
		c.CheckpointDirty = 32 << 20
	}
	if c.CheckpointHot == 0 {
		c.CheckpointHot = 1024
	}
	def(&c.WriteTime, 250*time.Millisecond)
	if c.Window == 0 {
		c.Window, c.WindowMin, c.WindowMax = 8<<20, 1<<20, 32<<20
	}
	if c.Region == 0 {
		c.Region = DefaultRegion
	}
	if c.Alloc == nil {
		c.Alloc = func(n int64) []byte { return make([]byte, n) }
	}
	if c.Msg == nil {
		c.Msg = func() *Msg { return new(Msg) }
	}
	if c.Op == nil {
		c.Op = func() *Op { return new(Op) }
	}
	if c.Block == 0 {
		c.Block = DefaultBlock
	}
}

// stage is where an op is on its way.
type stage uint8

const (
	stNew       stage = iota
	stHeld            // not started: waits for a decision, an owner, a path switch
	stLock            // not started: waits for its range
	stCompare         // started: the owner compares (COMPARE AND WRITE)
	stMirror          // started: sent to the peer, unanswered
	stIntent          // started: applied at the peer, waits for its regions' bits here (R7)
	stStore           // started: in the local store
	stBoth            // a flush: peer and local store at work
	stRepair          // a refused write: the range is read back, then re-copied to the peer (R5)
	stAnswer          // done on both, the status waits for the lease (R1)
	stForward         // started as far as this node knows: at the owner
	stCopy            // a resync copy
	stHealLock        // started: its blocks are damaged, it waits for exclusive use of its range (R15)
	stHealAsk         // started: the peer is asked for its copy of them
	stHealWrite       // started: they are written here, or accepted
	stDone
)

// Op is the pair's side of a scsi.Op. The runtime takes it from a pool, sets S and LUN and calls
// Submit; it gets it back with ActReply.
type Op struct {
	Cmd *scsi.Op
	LUN LUNID
	// Started tells, when the op is back, whether it may have taken effect: it was executed or
	// forwarded.
	Started bool
	// Forwarded tells, when the op is back, that the other node executed it.
	Forwarded bool
	// StartedAt is when it was, CLOCK_BOOTTIME in ns, if it was started here: judged (R9, R11b),
	// its range locked. The store's work may come later, after that of the peer or of the
	// write-intent bits.
	StartedAt int64

	unit    *unit
	lock    rangelock.Request
	stage   stage
	id      uint64
	since   int64  // start of the present stage, for Dm and HoldMax
	front   uint64 // forwarded to us: front-end incarnation and sequence
	frontN  uint64
	remote  bool  // came over the link
	began   bool  // counted in its unit's started
	durable bool  // this pass writes through
	waits   bool  // the store has not begun with it yet
	queued  bool  // held until there is room in the window
	cost    int64 // what it takes of the window
	// peerTook is how long the peer's part took, 0 before it has ended
	peerTook int64
	peerOK   bool  // flush: peer's half done; forwarded: the mirror frame with our tag was applied here
	selfOK   bool  // flush: our half done
	room     int64 // forwarded: what it takes of the window
	seen     bool  // forwarded: a mirror frame with our tag came, applied or not yet
	touched  bool  // forwarded: what came with our tag was refused for lack of space, or taken back: the range may have changed
	aborted  bool
	stray    bool    // held undecided, without its path having been asked for
	strayAt  int64   // when this node served again
	calm     bool    // admitted because no other nexus had started a command since its host's last sign of life
	sign     int64   // forwarded, and admitted for that: when the sign was at the latest, by the owner's clock
	latest   *latest // what is known of the host's sessions here
	result   scsi.Result
	seq      uint64 // owner sequence under which it started

	// Repair and copy.
	Buf   []byte
	Sum   []byte
	Hole  bool
	copy  bool
	ckpt  bool   // the flush of a checkpoint
	sums  bool   // a flush that has to cover the checksums as well: bits are taken back after it (R15)
	scrub bool   // a copy that compares only
	skip  Skip   // of a scrub: why it was not compared, where that is known
	gen   uint64 // a copy: of which resync

	// Bad are the blocks that do not match their checksums, whole ones: what the runtime found with
	// Damaged, or in what it read for a copy (R15). Heal is what ActHeal writes at HealAt; Verify
	// has it written only if it is what the checksums here say, for it is a joiner's, which may be
	// older.
	Bad    []scsi.Range
	Heal   []byte
	HealAt int64
	Verify bool
	beyond []scsi.Range // those of Bad of which the joiner had no good copy
	back   stage        // the stage at which it continues once it has been healed
	healed bool         // what does not match now is lost
	rounds int          // healed so often
	full   bool         // there was no space to write the peer's copy

	place hook[Op] // in its unit's chain
	uses  uint64
	own   scsi.Op // Cmd of an op that came over the link
}

// Reset makes an op that has ended ready for another command.
func (o *Op) Reset() { *o = Op{Buf: o.Buf, uses: o.uses + 1} }

// Uses is how many commands the op has served before the present one.
func (o *Op) Uses() uint64 { return o.uses }

// ActionKind says what the runtime is asked to do.
type ActionKind uint8

// Actions. Those that read or write the store end in Machine.StoreDone, those of the arbiter in
// ArbiterDone, and so on; the comment names the call. Actions are to be begun in order.
const (
	ActSend       ActionKind = iota + 1 // Msg to the peer
	ActReply                            // Op is complete, its S.Result is set
	ActStore                            // run Op on the local store, durable if Durable → StoreDone (of a read: Damaged, and Op.Bad); before a read that waits for the disk, StoreBegins
	ActFlush                            // sync Op.LUN, with its checksums if Durable → StoreDone
	ActCompare                          // compare Op.S.Verify with the store → StoreDone (Miscompare, Damaged or OK)
	ActRepairRead                       // read Op's range into Op.Buf, and name in Op.Bad what does not match its checksums → StoreDone
	ActCopyRead                         // read Op's range into Op.Buf, set Op.Hole or Op.Sum, Op.Bad as above → StoreDone
	ActApply                            // Msg (mirror, copy data) to the local store → Applied
	ActPeerFlush                        // Msg: sync a LUN for the peer → Applied
	ActCompareSum                       // Msg: does our range have this sum → SumDone
	ActFlushAll                         // Msg: everything durable → Applied; Msg nil: for ourselves → SelfFlushed
	ActSaveEpoch                        // Record and State (as ActSaveState, number ID) durable in one step; if Durable, Record also as the one acted on → EpochSaved
	ActArbiterGet                       // → ArbiterDone
	ActArbiterCAS                       // Record in place of Version → ArbiterDone
	ActAppend                           // make the entry Meta durable at Index → Appended
	ActShow                             // let hosts and callers see the entry at Index, which is durable → Shown
	ActProposed                         // proposal ID ended: Result, Meta
	ActInstall                          // Msg: replace all metadata → Installed
	ActExport                           // send the whole metadata: call SendMeta
	ActDrain                            // R11a: drain Host's sessions here, then Drained(ID)
	ActRequest                          // Msg (request or reply) for the runtime
	ActALUA                             // access states changed: Units (nil = all); raise 2A/06
	ActEvent                            // Text for people: log and event
	ActDropHosts                        // R11b: close host connections without executing what is buffered
	ActProveHosts                       // R11b: ping the initiators of all sessions, and close those that do not answer within AgeMax
	ActTakeAll                          // propose the entry that makes this node owner of every unit
	ActResyncList                       // list objects to copy → ResyncObjects
	ActDropLink                         // break the link: a new handshake must start over
	ActCopyFree                         // Op.Buf of a copy may be reused
	ActQuiet                            // quiesce ID: OK, its units are quiet; else it failed
	ActIntend                           // make the bits of Regions of LUN durable → Intended
	ActClear                            // take all bits of LUN except Keep back: at once, before any later ActIntend
	ActSaveState                        // State durable in the store, numbered ID: a lower number never replaces a higher one → StateSaved
	ActProve                            // ask the initiator of Alive for a sign of life → Proved
	ActProbe                            // write a block to the backing volume of LUN, durably; ID is its group → Probed
	ActMarkLost                         // propose the entry that makes Units answer LostData until published again → LostMarked
	ActFetch                            // Msg: read its range, if it matches its checksums → Fetched
	ActHeal                             // write Op.Heal at Op.HealAt, with its checksums → StoreDone (Damaged: Op.Verify, and it is not what they say; nothing is written)
	ActAccept                           // take the blocks of Op.Bad that have no known checksum as they are → StoreDone (OK: all had none, or match)
)

// Action is one action that the runtime has to carry out.
type Action struct {
	Kind    ActionKind
	Op      *Op
	Msg     *Msg
	Durable bool
	Joining bool // ActAppend: what is copied here from an object of this node is incomplete until the resync has ended (R14)
	Record  *Record
	Version string
	Index   uint64
	ID      uint64
	Result  scsi.Result
	Meta    []byte
	Host    string
	LUN     LUNID
	Text    string
	Regions []uint32
	Keep    Regions
	State   State
	Units   []LUNID
	Alive   *scsi.Liveness
	Damage  *Damage // ActEvent: what Text says of damaged blocks
}

// Damage is what became of blocks that did not match their checksums (R15).
type Damage struct {
	LUN  LUNID // or a snapshot
	Runs []scsi.Range
	Lost bool // no node has a good copy; else they are healed here
}

// Outcome of an arbiter call.
type Outcome uint8

// Outcomes.
const (
	Got      Outcome = iota // get: the record; cas: it is written
	Missing                 // get: there is none
	Conflict                // cas: another version is there
	Unknown                 // no answer: it may have happened, may happen yet
)
