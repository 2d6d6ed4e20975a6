package scsi

import "encoding/binary"

// Status codes (SAM-5 §5.3.1).
const (
	StatusGood                = 0x00
	StatusCheckCondition      = 0x02
	StatusBusy                = 0x08
	StatusReservationConflict = 0x18
	StatusTaskSetFull         = 0x28
	StatusTaskAborted         = 0x40
)

// SenseKey is the class of an error (SPC-4 table 49).
type SenseKey byte

// Sense keys.
const (
	NoSense        SenseKey = 0x0
	NotReady       SenseKey = 0x2
	MediumError    SenseKey = 0x3
	HardwareError  SenseKey = 0x4
	IllegalRequest SenseKey = 0x5
	UnitAttention  SenseKey = 0x6
	DataProtect    SenseKey = 0x7
	AbortedCommand SenseKey = 0xb
	MiscompareKey  SenseKey = 0xe
)

// Additional sense codes, ASC in the high byte and ASCQ in the low one (SPC-4 annex F.2).
const (
	ascTransition            = 0x040a
	ascManualIntervention    = 0x0403
	ascTargetPortUnavailable = 0x040c
	ascWriteError            = 0x0c00
	ascInvalidFieldInfo      = 0x0e03
	ascReadError             = 0x1100
	ascParamListLength       = 0x1a00
	ascMiscompare            = 0x1d00
	ascInvalidOpcode         = 0x2000
	ascLBAOutOfRange         = 0x2100
	ascInvalidFieldCDB       = 0x2400
	ascLUNotSupported        = 0x2500
	ascInvalidFieldParam     = 0x2600
	ascInvalidRelease        = 0x2604
	ascWriteProtected        = 0x2700
	ascSoftwareWriteProtect  = 0x2702
	ascNoSpace               = 0x2707
	ascInternalFailure       = 0x4400
	ascRegistrationResources = 0x5504
)

const (
	fixedSenseLen = 18
	senseValid    = 0x80
)

// sense is sense data before it is encoded.
type sense struct {
	key     SenseKey
	code    uint16
	info    uint64
	hasInfo bool
	sks     [3]byte // sense key specific, byte 0 with SKSV
}

// encode writes the sense in fixed or descriptor format (SPC-4 §4.5.2, §4.5.3) and returns its
// length, at most 30.
func (e *sense) encode(b []byte, descriptor bool) int {
	if descriptor {
		clear(b[:30])
		b[0], b[1], b[2], b[3] = 0x72, byte(e.key), byte(e.code>>8), byte(e.code)
		n := 8
		if e.hasInfo {
			b[n], b[n+1], b[n+2] = 0x00, 0x0a, 0x80
			binary.BigEndian.PutUint64(b[n+4:], e.info)
			n += 12
		}
		if e.sks[0] != 0 {
			b[n], b[n+1] = 0x02, 0x06
			copy(b[n+4:], e.sks[:])
			n += 8
		}
		b[7] = byte(n - 8)
		return n
	}
	clear(b[:fixedSenseLen])
	b[0], b[2], b[7] = 0x70, byte(e.key), fixedSenseLen-8
	if e.hasInfo && e.info <= 0xffffffff { // the field has four bytes; what does not fit is not valid
		b[0] |= senseValid
		binary.BigEndian.PutUint32(b[3:], uint32(e.info))
	}
	b[12], b[13] = byte(e.code>>8), byte(e.code)
	copy(b[15:], e.sks[:])
	return fixedSenseLen
}

// FixedSense makes fixed format sense data, as Outcome carries it.
func FixedSense(key SenseKey, asc, ascq byte) []byte {
	b := make([]byte, fixedSenseLen)
	(&sense{key: key, code: uint16(asc)<<8 | uint16(ascq)}).encode(b, false)
	return b
}

func (t *Task) fail(e *sense) bool {
	t.Status = StatusCheckCondition
	t.DataIn = nil
	t.Transfer = 0
	t.Sense = t.senseBuf[:e.encode(t.senseBuf[:], t.descriptorSense())]
	return true
}

func (t *Task) descriptorSense() bool { return t.unit != nil && t.unit.mode.Load().Current.DescSense }

// check ends the task with CHECK CONDITION; it returns true, as what completes a task does.
func (t *Task) check(key SenseKey, code uint16) bool { return t.fail(&sense{key: key, code: code}) }

// notReady is NOT READY: the host is to use its other path. A host that has no other path gives the
// error to its guest or program (QEMU, block/iscsi.c: NOT READY is EIO), and repeats what
// was BUSY. TEST UNIT READY keeps the sense: libiscsi sends it to see whether its login was of use.
func (t *Task) notReady(code uint16) bool {
	if s := t.Nexus.server; t.CDB[0] != opTestUnitReady && s != nil && s.cluster.SinglePath(t.Nexus.ID.Initiator) {
		t.Status = StatusBusy
		return true
	}
	return t.check(NotReady, code)
}

// invalidCDB is ILLEGAL REQUEST, INVALID FIELD IN CDB, pointing at a byte and its highest bit in
// error.
func (t *Task) invalidCDB(at, bit int) bool {
	return t.fail(&sense{key: IllegalRequest, code: ascInvalidFieldCDB,
		sks: [3]byte{0xc0 | 0x08 | byte(bit), byte(at >> 8), byte(at)}})
}

// invalidParam is INVALID FIELD IN PARAMETER LIST, pointing at a byte of the list.
func (t *Task) invalidParam(at int) bool {
	return t.fail(&sense{key: IllegalRequest, code: ascInvalidFieldParam, sks: [3]byte{0x80, byte(at >> 8), byte(at)}})
}

func (t *Task) unsupported() bool {
	if serviceActions[t.CDB[0]] != nil { // the operation code is known, the service action is not
		return t.invalidCDB(1, 4)
	}
	return t.check(IllegalRequest, ascInvalidOpcode)
}

// setSense takes over sense data that was made elsewhere in fixed format.
func (t *Task) setSense(fixed []byte) {
	if len(fixed) < 14 {
		t.check(HardwareError, ascInternalFailure)
		return
	}
	status := t.Status
	t.check(SenseKey(fixed[2]&0xf), uint16(fixed[12])<<8|uint16(fixed[13]))
	t.Status = status
}

// finishOp gives the task the status of its operation.
func (t *Task) finishOp() {
	op := &t.op
	switch op.Result {
	case OK:
		return
	case Busy:
		t.Status = StatusBusy
	case Aborted:
		// Only what this server asked to abort carries killed, which decides between silence and
		// TASK ABORTED. An operation that ends so without a request was cut off with its forwarder;
		// the host may try again.
		t.Status = StatusTaskAborted
	case ReservationConflict:
		t.Status = StatusReservationConflict
	case Miscompare:
		t.fail(&sense{key: MiscompareKey, code: ascMiscompare, info: uint64(op.MiscompareAt), hasInfo: true})
	case NoSpace:
		t.check(DataProtect, ascNoSpace)
	case ReadError, LostData, Damaged:
		e := &sense{key: MediumError, code: ascReadError}
		if op.Located && t.unit != nil { // the INFORMATION field is the LBA (SBC-4 §4.18.1)
			e.info, e.hasInfo = uint64(op.BadAt>>t.unit.state.Load().shift), true
		}
		t.fail(e)
	case WriteError:
		t.check(MediumError, ascWriteError)
	case Unavailable:
		t.notReady(ascTargetPortUnavailable)
	case Transitioning:
		t.notReady(ascTransition)
	case OutOfRange:
		t.check(IllegalRequest, ascLBAOutOfRange)
	default:
		t.check(HardwareError, ascInternalFailure)
	}
	t.DataIn, t.Transfer = nil, 0
}
