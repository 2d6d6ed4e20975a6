package pair

import (
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/rangelock"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// LUNID is the uuid of a logical unit.
type LUNID [16]byte

// String is the canonical form of a uuid.
func (id LUNID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// MsgType says what a message between the nodes is.
type MsgType uint8

// Messages. The class comment is the link's credit class, highest first; see Class.
const (
	MsgHeartbeat     MsgType = iota + 1 // ID = number, Aux = sender's clock
	MsgHeartbeatAck                     // ID, Aux echoed
	MsgSync                             // Meta = SyncInfo: who I am and where I stand; ID = number, Aux = last number seen
	MsgStepDown                         // exclude me by consent; Meta = reason
	MsgMirror                           // apply this write; ID = op, Kind, LUN, Off, Len, Data, Ranges
	MsgMirrorAck                        // ID, Result
	MsgFlush                            // make a LUN durable; ID
	MsgFlushAck                         // ID, Result
	MsgForward                          // execute this command at the owner; ID = (front-end sequence)
	MsgForwardResult                    // ID, Result, Data, Off = miscompare or extent
	MsgForwardAbort                     // ID: do not start it
	MsgPathSwitch                       // R11a: Meta = host, LUN; ID
	MsgPathSwitchAck                    // ID
	MsgPropose                          // to the chair: Meta = entry; ID = proposer's number
	MsgProposeResult                    // ID, Result, Meta = outcome
	MsgAppend                           // from the chair: Aux = index, Meta = entry
	MsgAppendAck                        // Aux = index, Result, Meta = outcome
	MsgRequest                          // runtime to runtime, opaque here: Meta; ID
	MsgReply                            // ID, Meta
	MsgMetaInstall                      // source to joiner: Meta = whole metadata, Aux = index; FlagParts: Meta = checksum of the parts that came, Len = their length
	MsgMetaAck                          // Result; FlagParts: Aux = index, Off = how much has come
	MsgCopySum                          // source to joiner: LUN, Off, Len, Meta = checksum (empty: a hole)
	MsgCopyNeed                         // joiner to source: ID, Aux = 1 when the data is needed; Result Damaged: it does not match its checksums; Unavailable with Aux = 1: the object was deleted
	MsgCopyData                         // source to joiner: ID, LUN, Off, Data, Meta = ranges of it that are damaged at the source (R15)
	MsgCopyAck                          // ID, Result
	MsgFlushAll                         // everything durable: data, metadata, epoch; ID
	MsgFlushAllAck                      // ID, Result, Aux = index
	MsgDirty                            // joiner to source: LUN, Meta = regions that it may have changed
	MsgClear                            // owner to partner: LUN, Aux = number of the checkpoint, Meta = regions whose bits stay
	MsgClearAck                         // LUN, Aux
	MsgClearDone                        // owner to partner: the number is durable here; ID
	MsgMetaPart                         // source to joiner, who knows parts: Off = offset, Len = of the whole, Aux = index, Meta = bytes
	MsgFetch                            // owner to partner, who keeps checksums: LUN, Off, Len: your copy of these blocks; ID (R15)
	MsgFetched                          // ID, Result (Damaged: they do not match their checksums here either), Data
	MsgTypeEnd
)

// Msg is a message on the link. Messages of one link arrive in order, whole and once, or the link
// is down.
type Msg struct {
	Type   MsgType
	Kind   scsi.OpKind
	Flags  uint8
	Result scsi.Result
	Epoch  uint64 // the sender's; older is refused (R4)
	Seq    uint64 // owner sequence of the LUN at the sender (R4)
	ID     uint64
	LUN    LUNID
	Off    int64
	Len    int64
	Front  uint64 // forwarded commands, in mirror frames too: front-end incarnation nonce (R11d)
	FrontN uint64 // and its sequence number
	Aux    int64
	Meta   []byte
	Data   []byte

	// Op is the sender's op, so that the link can wait with its buffer; not on the wire.
	Op *Op
	// Ended is the forwarded command that a result answers, for the sender's counters; not on the
	// wire.
	Ended *Op
	// Spare is memory for Meta, from an earlier use of the message; not on the wire.
	Spare []byte

	// Sum is the checksum that Meta of a MsgMetaInstall must have, for ActInstall, if it came in
	// parts; not on the wire.
	Sum []byte

	// At the partner. These are parts of the message, not objects beside it: nothing is allocated
	// where mirrored writes go through.
	turn  rangelock.Request // its place among what is applied to its unit (applyInOrder)
	unit  *unit             // of turn; nil: it has no place
	owed  hook[Msg]         // its work is under way
	begun int64             // since then
}

// spareMax is the longest memory for Meta that a message keeps: a nexus and a sign of life fit.
const spareMax = 512

// Reset makes a message that nobody refers to any more, nor to what is in its Meta, ready for
// another one. It lets go of its Data.
func (msg *Msg) Reset() {
	spare := msg.Spare
	if cap(msg.Meta) > cap(spare) && cap(msg.Meta) <= spareMax {
		spare = msg.Meta[:0]
	}
	*msg = Msg{Spare: spare}
}

// Message flags.
const (
	FlagFUA    = 1 << iota // durable before the answer
	FlagUnmap              // write same of zeroes may deallocate
	FlagRepair             // the range is re-copied after a refusal: zero blocks become holes (R5)
	FlagScrub              // copy messages between two members: nothing is changed unless the scrub repairs
	FlagProbe              // a flush that only asks whether the disk is at work
	FlagParts              // metadata that comes in parts
	FlagSign               // a forwarded write: Meta has the last sign of life of its host, by the owner's clock, behind the nexus
	FlagSums               // a flush that covers the checksums of blocks as well (R15)

	// FlagVerify is a bit that no MsgFetch has otherwise: a joiner may answer, for what it has is
	// compared (R15).
	FlagVerify = FlagRepair
)

// SyncInfo is what nodes send each other when a link comes up and whenever their state changes.
type SyncInfo struct {
	Phase       Phase       `json:"phase"`
	Epoch       uint64      `json:"epoch"`       // of the record last read
	Durable     uint64      `json:"durable"`     // last epoch acted on
	Incarnation Incarnation `json:"incarnation"` // of this process
	Store       string      `json:"store"`       // id
	Empty       bool        `json:"empty"`       // no LUN was ever made here
	Index       uint64      `json:"index"`       // metadata log
	Excluding   bool        `json:"excluding"`   // this node is about to exclude its peer
	Agreed      bool        `json:"agreed"`      // this node takes part in the service under this record and link
	Leaving     bool        `json:"leaving"`     // consent to be excluded (orderly stop, failed disk)
	Untrusted   bool        `json:"untrusted"`   // the store failed in an earlier life and has not been copied to since (R12)
	Old         bool        `json:"old"`         // the store is an older copy of itself (R6)
	Check       Checkpoint  `json:"check"`
	LeaveReason string      `json:"leave_reason"`     // why
	Failed      bool        `json:"failed,omitempty"` // it leaves because its store failed; 0.1.0 does not say so
	Lock        LockState   `json:"lock,omitempty"`   // release 0.1.0 sends none
	Moves       bool        `json:"moves"`            // this release says how an entry of the log moves on
	Moved       uint64      `json:"moved"`            // counts that
	Signs       bool        `json:"signs,omitempty"`  // it understands FlagSign; 0.1.0 does not
	Sums        bool        `json:"sums,omitempty"`   // it keeps checksums of blocks, and answers MsgFetch (R15)
	// Partial: Untrusted is said because of single objects only, which its answer to the metadata
	// names (R12). Release 0.1.0 copies everything.
	Partial bool `json:"partial,omitempty"`
}
