// Package scsi is the device server: what turns SCSI commands (SAM-5, SPC-4, SBC-3) into operations
// on a medium and the results into status, sense and data. It knows nothing of the transport above
// and of mirroring below.
//
// The way of a command: Server.Submit finds the unit (Cluster.Lookup) and the command (the table in
// commands.go), sees to unit attentions, and runs the command's function. That either answers at
// once, or fills in Task.op and hands it to the unit's Medium (execute), or proposes a change of
// replicated state (propose). What is on its way is tracked per nexus (track.go), so that task
// management, nexus loss and fencing can end it and know when it has ended.
//
// Reservations and mode parameters are values (PRState, ModeState) that pure functions (ApplyPROut,
// ApplyModeSelect) change, so that every node of a pair arrives at the same. Unit attentions live
// at the nexus.
package scsi

// NexusID names an I_T nexus: an initiator port (iSCSI name and ISID, RFC 7143 §4.4.1) joined to a
// target port. It is comparable, travels in forwarded operations and identifies persistent
// reservation registrants.
type NexusID struct {
	Initiator string  // iSCSI name, lower case
	ISID      [6]byte // initiator session id
	Port      uint16  // relative target port identifier: 1 = node a, 2 = node b
}

// TaskAttr is the task attribute of a command (SAM-5 §8.6).
type TaskAttr byte

// Task attributes as iSCSI encodes them (RFC 7143 §11.3.1).
const (
	AttrUntagged TaskAttr = iota
	AttrSimple
	AttrOrdered
	AttrHeadOfQueue
	AttrACA
)

// Task is one SCSI command on its way through the device server. The transport fills the first
// part, calls Server.Submit and reads the second part when the task is complete. Transports reuse
// tasks: code that keeps a *Task after it completed has a bug.
type Task struct {
	// Set by the transport.
	Nexus    *Nexus
	LUN      uint64   // the eight-byte logical unit number field
	CDB      [16]byte // shorter CDBs are zero padded
	LongCDB  []byte   // bytes 16 and beyond of a variable-length CDB (from the AHS), usually nil
	Attr     TaskAttr
	Tag      uint32 // initiator task tag, for task management
	Arrived  int64  // CLOCK_BOOTTIME in ns when the last byte of the command became readable here (R11b)
	DataOut  []byte // all data of a write command, in order: min(expected length, what was sent)
	Expected int    // expected data transfer length in bytes, of the read direction for reads, else of the write
	Read     bool   // R bit: the initiator expects data
	Write    bool   // W bit: the initiator sent data
	// Alloc returns a buffer of n bytes that lives until the transport has sent it. The content is
	// undefined.
	Alloc func(n int) []byte
	// Done is called once when Submit returned false: from any goroutine (the submitting one
	// included), maybe before Submit has returned, and with no lock of the device server held.
	Done func(*Task)
	// Starts is of the goroutine that submits, nil if it has none: what the command makes others do
	// may leave with it. It counts during Submit only.
	Starts *Outbox

	// Set by the device server.
	Status   byte
	Sense    []byte // fixed or descriptor format; nil with GOOD. Points into senseBuf.
	DataIn   []byte // from Alloc; at most what the CDB's allocation length allows. May exceed Expected: the transport cuts.
	Transfer int    // bytes the CDB asks to move; the transport computes over- and underflow against Expected
	// Aborted: the command was ended by a task management function or the loss of its nexus, and no
	// response is sent for it. Status and the rest are meaningless then. (What another nexus
	// aborted ends with TASK ABORTED instead.)
	Aborted bool
	// Ends is of the goroutine that calls Done, nil if it has none: the response may leave with it.
	Ends      *Outbox
	senseBuf  [64]byte
	unit      *Unit
	op        Op
	serverRef taskState
}

// OpKind is what an Op does to the medium.
type OpKind byte

// Medium operations.
const (
	OpRead         OpKind = iota + 1
	OpWrite               // Data to Off
	OpFlush               // everything acknowledged before is durable on every member when it completes (R8)
	OpUnmap               // Ranges become holes that read as zero
	OpWriteSame           // Data (one block) repeated over [Off, Off+Len); zero data may become a hole if Unmap is set
	OpCompareWrite        // if the medium equals Verify at Off, write Data there; atomic against every other op
	OpMapped              // Data is unused; reports in Extent the mapping state at Off (GET LBA STATUS)
)

// Result is the outcome of an Op; it crosses the pair link as one byte.
type Result byte

// Results. The comment gives the sense a front end reports.
const (
	OK                  Result = iota // GOOD
	Busy                              // BUSY: never started, may be retried (R11b)
	Aborted                           // no status: the command was aborted before it took effect
	ReservationConflict               // RESERVATION CONFLICT
	Miscompare                        // MISCOMPARE 1D/00 with the offset in INFORMATION
	NoSpace                           // DATA PROTECT 27/07 (R13)
	ReadError                         // MEDIUM ERROR 11/00
	WriteError                        // MEDIUM ERROR 0C/00
	Unavailable                       // NOT READY 04/0C: not a serving member; use the other path
	Transitioning                     // NOT READY 04/0A: last resort, see "Undecided is not fenced"
	OutOfRange                        // ILLEGAL REQUEST 21/00: beyond the unit's present size
	LostData                          // MEDIUM ERROR 11/00 until published again (R8)
	Failed                            // HARDWARE ERROR 44/00: an internal error, logged where it happened
	Damaged                           // between store and pair only: blocks do not match their checksums (R15)
)

// Range is a run of bytes.
type Range struct{ Off, Len int64 }

// Op is one operation on a medium: what is left of a command after parsing. It is executed at the
// owner, wherever it arrived, and carries all that the owner needs to judge it there, under the
// lock.
type Op struct {
	Kind     OpKind
	Off      int64   // bytes
	Len      int64   // bytes
	Data     []byte  // write: payload; write same: one block; compare-and-write: new data; read: the buffer to fill
	Verify   []byte  // compare-and-write: the expected data, len(Data) bytes
	Ranges   []Range // unmap
	FUA      bool    // durable on every member before the status
	Unmap    bool    // write same of zeroes may deallocate
	Nexus    NexusID // whose command it is: path switch (R11a) and reservations are decided by it
	Arrived  int64   // CLOCK_BOOTTIME ns; a write not started D after it is answered Busy (R11b)
	Done     func(*Op)
	Task     *Task     // the front end's task; nil when the operation came over the link
	Liveness *Liveness // of the nexus; nil when the operation came over the link, or when nothing has to be proved
	Starts   *Outbox   // as of a Task, during Submit
	Ends     *Outbox   // as of a Task; set by the medium, if at all, before it calls Done

	Result       Result
	MiscompareAt int64 // Miscompare: offset in bytes of the first difference within Verify
	BadAt        int64 // ReadError with Located: offset in bytes of the first block that is lost
	Located      bool
	Extent       Range // OpMapped: the run at Off with one state
	Mapped       bool  // OpMapped: whether that run is allocated

	// Medium belongs to the medium from Submit to completion.
	Medium any
}

// Reset clears an op for reuse.
func (o *Op) Reset() { *o = Op{} }

// Writes reports whether the op can change the medium.
func (k OpKind) Writes() bool {
	return k == OpWrite || k == OpUnmap || k == OpWriteSame || k == OpCompareWrite
}

// Access is what a logical unit can do for a host through this node at this moment.
type Access byte

// Access states.
const (
	AccessReady         Access = iota // executes or forwards
	AccessTransitioning               // undecided: commands are held by the medium; TUR and the like answer 04/0A last
	AccessUnavailable                 // fenced: NOT READY 04/0C
)

// Medium is the storage beneath a logical unit. Implementations: the pair (mirrored, owned,
// forwarded) and lun.Local (one replica).
type Medium interface {
	// Submit starts an op. It returns true when the op is already complete (Done is then not
	// called) and false when Done will be called later, exactly once, from any goroutine. Bounds
	// against the unit's size are checked again inside, under the lock, because the size may change
	// meanwhile.
	Submit(op *Op) bool
	// Abort asks that op, submitted and not complete, never take effect. An op that has not started
	// completes with Aborted, at once and maybe before Abort returns; a started one runs to its
	// end. Done is called either way. Aborting an op that has completed is harmless only if the
	// caller still holds it; the device server does.
	Abort(op *Op)
	// Access tells how commands that do not touch the medium are to be answered.
	Access() Access
}
