// Package pdu is the iSCSI wire format shared by the target and the initiator: basic header
// segments, login text, digests (RFC 7143 §11, §13). It reads and writes headers in place: nothing
// here allocates per PDU.
package pdu

import "encoding/binary"

// HeaderLen is the size of a basic header segment in bytes (RFC 7143 §11.2.1).
const HeaderLen = 48

// MaxDataSegment is the largest DataSegmentLength that 24 bits can carry (RFC 7143 §11.2.1.6).
const MaxDataSegment = 1<<24 - 1

// Opcode is the six-bit operation code of a PDU (RFC 7143 §11.2.1.2).
type Opcode byte

// Initiator opcodes, then target opcodes.
const (
	NopOut     Opcode = 0x00
	SCSICmd    Opcode = 0x01
	TMFReq     Opcode = 0x02
	LoginReq   Opcode = 0x03
	TextReq    Opcode = 0x04
	DataOut    Opcode = 0x05
	LogoutReq  Opcode = 0x06
	SNACK      Opcode = 0x10
	NopIn      Opcode = 0x20
	SCSIResp   Opcode = 0x21
	TMFResp    Opcode = 0x22
	LoginResp  Opcode = 0x23
	TextResp   Opcode = 0x24
	DataIn     Opcode = 0x25
	LogoutResp Opcode = 0x26
	R2T        Opcode = 0x31
	AsyncMsg   Opcode = 0x32
	Reject     Opcode = 0x3f
)

// Reserved is the tag value that means "no tag" (RFC 7143 §11.2.1.8).
const Reserved uint32 = 0xffffffff

// Bits of byte 1, by PDU.
const (
	Final      = 0x80 // all sequences; Transit in login
	ReadBit    = 0x40 // SCSI Command
	WriteBit   = 0x20 // SCSI Command
	Continue   = 0x40 // login and text
	StatusBit  = 0x01 // Data-In: carries status
	OverflowO  = 0x04 // SCSI Response and Data-In: residual overflow
	UnderflowU = 0x02 // residual underflow
	BidiOver   = 0x10
	BidiUnder  = 0x08
)

// BHS is a basic header segment, a view on at least HeaderLen bytes.
type BHS []byte

// Op is the opcode without the immediate bit.
func (h BHS) Op() Opcode { return Opcode(h[0] & 0x3f) }

// Immediate reports the I bit: the command is delivered at once and does not advance CmdSN (RFC
// 7143 §4.2.2.1).
func (h BHS) Immediate() bool { return h[0]&0x40 != 0 }

// SetOp writes byte 0.
func (h BHS) SetOp(op Opcode, immediate bool) {
	h[0] = byte(op)
	if immediate {
		h[0] |= 0x40
	}
}

// Flags is byte 1, SetFlags writes it.
func (h BHS) Flags() byte     { return h[1] }
func (h BHS) SetFlags(f byte) { h[1] = f }

// AHSLen is the length of all additional header segments in bytes (the wire counts four-byte
// words).
func (h BHS) AHSLen() int { return int(h[4]) * 4 }

// DataLen is DataSegmentLength in bytes, without padding.
func (h BHS) DataLen() int { return int(h[5])<<16 | int(h[6])<<8 | int(h[7]) }

// SetDataLen writes DataSegmentLength and clears TotalAHSLength.
func (h BHS) SetDataLen(n int) { h[4], h[5], h[6], h[7] = 0, byte(n>>16), byte(n>>8), byte(n) }

// Pad is the number of bytes that round n up to a word (RFC 7143 §11.1).
func Pad(n int) int { return -n & 3 }

// LUN is the eight-byte logical unit number (SAM-5 §4.7.1).
func (h BHS) LUN() uint64     { return binary.BigEndian.Uint64(h[8:]) }
func (h BHS) SetLUN(l uint64) { binary.BigEndian.PutUint64(h[8:], l) }

// ITT is the initiator task tag.
func (h BHS) ITT() uint32     { return binary.BigEndian.Uint32(h[16:]) }
func (h BHS) SetITT(v uint32) { binary.BigEndian.PutUint32(h[16:], v) }

// TTT is the target transfer tag, in every PDU that has one at byte 20.
func (h BHS) TTT() uint32     { return binary.BigEndian.Uint32(h[20:]) }
func (h BHS) SetTTT(v uint32) { binary.BigEndian.PutUint32(h[20:], v) }

// U32 and PutU32 reach the other words by their byte offset: 24 CmdSN or StatSN, 28 ExpStatSN or
// ExpCmdSN, 32 MaxCmdSN, 36 DataSN, 40 BufferOffset, 44 Residual count or desired data length.
func (h BHS) U32(off int) uint32       { return binary.BigEndian.Uint32(h[off:]) }
func (h BHS) PutU32(off int, v uint32) { binary.BigEndian.PutUint32(h[off:], v) }

// Names of word offsets, for U32 and PutU32. One offset has several names because the PDUs differ.
const (
	OffEDTL      = 20 // SCSI Command: expected data transfer length
	OffRefTag    = 20 // TMF request: referenced task tag
	OffCmdSN     = 24 // initiator PDUs
	OffStatSN    = 24 // target PDUs
	OffExpStatSN = 28 // initiator PDUs
	OffExpCmdSN  = 28 // target PDUs
	OffMaxCmdSN  = 32 // target PDUs
	OffCDB       = 32 // SCSI Command: 16 bytes
	OffDataSN    = 36 // Data-Out, Data-In, R2T (R2TSN)
	OffBufferOff = 40 // Data-Out, Data-In, R2T
	OffResidual  = 44 // SCSI Response, Data-In with status
	OffDesired   = 44 // R2T: desired data transfer length
)
