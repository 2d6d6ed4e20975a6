package initiator

import (
	"fmt"
	"sync/atomic"
)

// Command is one SCSI command of a session. The caller fills the first part, calls Session.Submit
// and gets the second part in Done. It may be reused, in Done already, and then costs no
// allocation.
type Command struct {
	LUN  uint16 // 0..16383
	CDB  [16]byte
	Out  []byte         // data to the target; at most one of Out and In is set
	In   []byte         // buffer for data from the target
	Attr byte           // task attribute (RFC 7143 §11.3.1); 0 is sent as SIMPLE
	Done func(*Command) // called once, must not block; runs on the session's reader as a rule
	User any            // the caller's

	Status   byte   // SAM-5 status, if Err is nil
	Sense    []byte // raw sense data, valid until the command is submitted again
	Got      int    // bytes stored in In
	Residual int    // bytes not transferred (underflow), or below zero: that the target had more (overflow)
	Err      error  // not an answer of the logical unit: ErrSessionLost, ErrAborted, ErrTimeout, ErrProtocol

	senseBuf [96]byte
	kind     byte
	tmf      tmfCall
	next     *Command
	itt      uint32
	cmdSN    uint32
	started  int64  // monotonic ns when Submit took it, for Timers.Command
	batch    uint64 // number of the output batch that holds the last reference to Out
	sent     int    // bytes of Out given to the output queue
	r2tSN    uint32
	dataSN   uint32
	ended    bool  // status received
	aborting bool  // an ABORT TASK for it is on its way
	abortErr error // what Err becomes if the abort ends it
}

// tmfCall is what a task management request adds to a Command.
type tmfCall struct {
	function byte
	ref      *Command
	refTag   uint32
	refSN    uint32
	response byte
}

// Kinds of tasks that hold an initiator task tag.
const (
	kindSCSI byte = iota
	kindPing
	kindTMF
	kindLogout
)

// Result is what Session.Execute returns for a command that the logical unit answered.
type Result struct {
	Status   byte
	SenseRaw []byte
	Got      int // bytes stored in the caller's buffer
	Residual int // see Command.Residual
}

// Sense decodes SenseRaw.
func (r Result) Sense() Sense { return ParseSense(r.SenseRaw) }

// Err is nil for GOOD, else a *SCSIError.
func (r Result) Err(opcode byte) error {
	if r.Status == StatusGood {
		return nil
	}
	return &SCSIError{Opcode: opcode, Status: r.Status, Sense: r.Sense()}
}

// encodeLUN gives the eight-byte form: peripheral addressing below 256 as Linux does, else flat
// space addressing (SAM-5 §4.7.7).
func encodeLUN(lun uint16) uint64 {
	if lun < 256 {
		return uint64(lun) << 48
	}
	return uint64(0x4000|lun) << 48
}

func (c *Command) check() error {
	switch {
	case c.Done == nil:
		return fmt.Errorf("initiator: command %#02x has no Done function", c.CDB[0])
	case c.LUN > 0x3fff:
		return fmt.Errorf("initiator: lun %d is beyond 16383", c.LUN)
	case len(c.Out) > 0 && len(c.In) > 0:
		return fmt.Errorf("initiator: command %#02x transfers data in both directions: %w", c.CDB[0], ErrNotSupported)
	case uint64(len(c.Out)) > 1<<31 || uint64(len(c.In)) > 1<<31:
		return fmt.Errorf("initiator: command %#02x transfers more than 2 GiB", c.CDB[0])
	}
	return nil
}

func (c *Command) reset(now int64) {
	c.Status, c.Sense, c.Got, c.Residual, c.Err = 0, nil, 0, 0, nil
	c.next, c.itt, c.cmdSN, c.batch, c.sent, c.r2tSN, c.dataSN = nil, 0, 0, 0, 0, 0, 0
	c.ended, c.aborting, c.abortErr, c.started = false, false, nil, now
}

// slot is an entry of the task table. Its index is the low half of the initiator task tag; the
// generation in the high half keeps a late answer from being taken for the next user's.
type slot struct {
	cmd atomic.Pointer[Command]
	gen uint16
}
