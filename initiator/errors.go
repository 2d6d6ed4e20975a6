package initiator

import (
	"errors"
	"fmt"
)

// Errors of sessions and devices. Test for them with errors.Is.
var (
	ErrClosed       = errors.New("closed")
	ErrSessionLost  = errors.New("session lost")
	ErrProtocol     = errors.New("iSCSI protocol error by the target")
	ErrDigest       = errors.New("digest mismatch")
	ErrTakenOver    = errors.New("no answer from the target, and another path has become the optimized one")
	ErrPeerSilent   = errors.New("no answer from the target within the ping timeout")
	ErrLogin        = errors.New("login failed")
	ErrAuth         = errors.New("authentication failed")
	ErrAborted      = errors.New("command aborted")
	ErrTimeout      = errors.New("command timed out")
	ErrNoPath       = errors.New("no path to the logical unit is usable")
	ErrNoUnit       = errors.New("the target reports that this host has no such LUN")
	ErrWrongUnit    = errors.New("this path leads to another logical unit")
	ErrUnaligned    = errors.New("not aligned to the block size")
	ErrBeyondEnd    = errors.New("beyond the end of the device")
	ErrNotSupported = errors.New("not supported by the logical unit")
)

// Classes of SCSI errors: errors.Is(err, ErrNoSpace) is true for a *SCSIError of that class.
var (
	ErrNoSpace             = errors.New("no space left on the thin logical unit")
	ErrReservationConflict = errors.New("reservation conflict")
	ErrMiscompare          = errors.New("miscompare")
	ErrMedium              = errors.New("medium error")
	ErrDataProtect         = errors.New("write protected")
	ErrIllegalRequest      = errors.New("illegal request")
	ErrHardware            = errors.New("hardware error")
)

// SCSIError is a command that ended with another status than GOOD (SAM-5 §5.3) or with sense data
// that the device layer does not retry.
type SCSIError struct {
	Opcode byte // operation code of the command
	Status byte // SAM-5 status code
	Sense
}

func (e *SCSIError) Error() string {
	if e.Status != StatusCheckCondition {
		return fmt.Sprintf("scsi command %#02x: status %s", e.Opcode, statusName(e.Status))
	}
	return fmt.Sprintf("scsi command %#02x: %s, sense %x/%02x/%02x", e.Opcode, keyName(e.Key), e.Key, e.ASC, e.ASCQ)
}

// Is maps statuses and sense to the class sentinels above.
func (e *SCSIError) Is(target error) bool {
	if e.Status == StatusReservationConflict {
		return target == ErrReservationConflict
	}
	if e.Status != StatusCheckCondition {
		return false
	}
	switch target {
	case ErrNoSpace: // SPACE ALLOCATION FAILED WRITE PROTECT (SBC-3 §4.7.3.6)
		return e.Key == KeyDataProtect && e.ASC == 0x27 && e.ASCQ == 0x07
	case ErrDataProtect:
		return e.Key == KeyDataProtect
	case ErrMiscompare:
		return e.Key == KeyMiscompare
	case ErrMedium:
		return e.Key == KeyMediumError
	case ErrHardware:
		return e.Key == KeyHardwareError
	case ErrIllegalRequest:
		return e.Key == KeyIllegalRequest
	}
	return false
}

func statusName(s byte) string {
	switch s {
	case StatusGood:
		return "GOOD"
	case StatusCheckCondition:
		return "CHECK CONDITION"
	case StatusBusy:
		return "BUSY"
	case StatusReservationConflict:
		return "RESERVATION CONFLICT"
	case StatusTaskSetFull:
		return "TASK SET FULL"
	case StatusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("%#02x", s)
}

var keyNames = [16]string{"NO SENSE", "RECOVERED ERROR", "NOT READY", "MEDIUM ERROR", "HARDWARE ERROR",
	"ILLEGAL REQUEST", "UNIT ATTENTION", "DATA PROTECT", "BLANK CHECK", "VENDOR SPECIFIC", "COPY ABORTED",
	"ABORTED COMMAND", "reserved", "VOLUME OVERFLOW", "MISCOMPARE", "COMPLETED"}

func keyName(k byte) string { return keyNames[k&15] }
