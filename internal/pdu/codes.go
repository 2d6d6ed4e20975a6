package pdu

// Login stages, the CSG and NSG fields of login PDUs (RFC 7143 §11.12.3). Stage 2 is reserved.
const (
	StageSecurity    = 0
	StageOperational = 1
	StageFullFeature = 3
)

// CSG and NSG are the current and the next stage in byte 1 of a login PDU.
func (h BHS) CSG() byte { return h[1] >> 2 & 3 }
func (h BHS) NSG() byte { return h[1] & 3 }

// LoginFlags is byte 1 of a login PDU; nsg counts only with transit.
func LoginFlags(transit, more bool, csg, nsg byte) byte {
	f := csg << 2
	if transit {
		f |= Final | nsg
	}
	if more {
		f |= Continue
	}
	return f
}

// Offsets in login PDUs (RFC 7143 §11.12, §11.13). The request's connection id is at OffCID; the
// response's status class and detail are one 16-bit number at OffLoginStatus.
const (
	OffVersionMax    = 2
	OffVersionMin    = 3 // request; "active version" in the response
	OffISID          = 8 // six bytes
	OffTSIH          = 14
	OffCID           = 20
	OffLoginStatus   = 36
	OffLogoutReason  = 1 // Logout request, low seven bits; also the TMF function code
	OffResponse      = 2 // SCSI response, TMF response, Logout response, Reject reason
	OffSCSIStatus    = 3 // SCSI response, Data-In
	OffAsyncEvent    = 36
	OffAsyncVCode    = 37
	OffAsyncParam1   = 38 // 16 bits; OffAsyncParam2 and OffAsyncParam3 likewise
	OffAsyncParam2   = 40
	OffAsyncParam3   = 42
	OffTime2Wait     = 40 // Logout response, 16 bits, seconds
	OffTime2Retain   = 42
	OffRefCmdSN      = 32 // TMF request
	OffExpDataSNResp = 36 // SCSI response: number of Data-In and R2T PDUs sent
)

// U16 and PutU16 reach 16-bit fields by byte offset.
func (h BHS) U16(off int) uint16       { return uint16(h[off])<<8 | uint16(h[off+1]) }
func (h BHS) PutU16(off int, v uint16) { h[off], h[off+1] = byte(v>>8), byte(v) }

// LoginStatus is a login response's class (high byte) and detail (RFC 7143 §11.13.5).
type LoginStatus uint16

// Login statuses.
const (
	LoginSuccess            LoginStatus = 0x0000
	LoginMovedTemporarily   LoginStatus = 0x0101
	LoginMovedPermanently   LoginStatus = 0x0102
	LoginInitiatorError     LoginStatus = 0x0200
	LoginAuthFailed         LoginStatus = 0x0201
	LoginForbidden          LoginStatus = 0x0202 // this initiator may not use the target
	LoginNotFound           LoginStatus = 0x0203
	LoginTargetRemoved      LoginStatus = 0x0204
	LoginBadVersion         LoginStatus = 0x0205
	LoginTooManyConnections LoginStatus = 0x0206
	LoginMissingParameter   LoginStatus = 0x0207
	LoginCantInclude        LoginStatus = 0x0208
	LoginBadSessionType     LoginStatus = 0x0209
	LoginNoSession          LoginStatus = 0x020a
	LoginInvalidRequest     LoginStatus = 0x020b
	LoginTargetError        LoginStatus = 0x0300
	LoginUnavailable        LoginStatus = 0x0301
	LoginOutOfResources     LoginStatus = 0x0302
)

var loginText = map[LoginStatus]string{
	LoginSuccess: "success", LoginMovedTemporarily: "target moved temporarily",
	LoginMovedPermanently: "target moved permanently", LoginInitiatorError: "initiator error",
	LoginAuthFailed: "authentication failure", LoginForbidden: "authorization failure",
	LoginNotFound: "target not found", LoginTargetRemoved: "target removed",
	LoginBadVersion: "unsupported version", LoginTooManyConnections: "too many connections",
	LoginMissingParameter: "missing parameter", LoginCantInclude: "cannot include in session",
	LoginBadSessionType: "session type not supported", LoginNoSession: "session does not exist",
	LoginInvalidRequest: "invalid request during login", LoginTargetError: "target error",
	LoginUnavailable: "service unavailable", LoginOutOfResources: "out of resources",
}

// String is the RFC's name of the status.
func (s LoginStatus) String() string {
	if t, ok := loginText[s]; ok {
		return t
	}
	return "login status 0x" + string("0123456789abcdef"[s>>12&15]) + string("0123456789abcdef"[s>>8&15]) +
		string("0123456789abcdef"[s>>4&15]) + string("0123456789abcdef"[s&15])
}

// Class is the status class: 0 success, 1 redirection, 2 initiator error, 3 target error (may be
// retried).
func (s LoginStatus) Class() byte { return byte(s >> 8) }

// Task management functions (RFC 7143 §11.5.1).
const (
	TMFAbortTask        = 1
	TMFAbortTaskSet     = 2
	TMFClearACA         = 3
	TMFClearTaskSet     = 4
	TMFLogicalUnitReset = 5
	TMFTargetWarmReset  = 6
	TMFTargetColdReset  = 7
	TMFTaskReassign     = 8
)

// Task management responses (RFC 7143 §11.6.1).
const (
	TMFComplete         = 0
	TMFNoTask           = 1
	TMFNoLUN            = 2
	TMFStillAllegiant   = 3
	TMFNoReassign       = 4
	TMFNotSupported     = 5
	TMFNotAuthorized    = 6
	TMFFunctionRejected = 255
)

// Logout reasons (RFC 7143 §11.14.1) and responses (§11.15.1).
const (
	LogoutSession    = 0
	LogoutConnection = 1
	LogoutRecovery   = 2 // remove the connection for recovery: ErrorRecoveryLevel 2 only

	LogoutDone          = 0
	LogoutNoCID         = 1
	LogoutNoRecovery    = 2
	LogoutCleanupFailed = 3
)

// Reject reasons (RFC 7143 §11.17.1).
const (
	RejectDataDigest     = 0x02
	RejectSNACK          = 0x03
	RejectProtocolError  = 0x04
	RejectNotSupported   = 0x05
	RejectTooManyImm     = 0x06
	RejectTaskInProgress = 0x07
	RejectInvalidAck     = 0x08
	RejectInvalidField   = 0x09
	RejectNoResources    = 0x0a
	RejectNegReset       = 0x0b
	RejectWaitingLogout  = 0x0c
)

// Asynchronous events (RFC 7143 §11.9.1).
const (
	AsyncSCSI          = 0
	AsyncLogout        = 1 // log out within Parameter3 seconds
	AsyncDropConn      = 2
	AsyncDropSession   = 3
	AsyncRenegotiate   = 4
	AsyncTasksAborted  = 5
	AsyncVendorDefined = 255
)

// SCSI response codes: byte 2 of a SCSI Response (RFC 7143 §11.4.3).
const (
	SCSICompleted = 0
	SCSIFailed    = 1 // target failure: the status byte is not valid
)

// AHS types (RFC 7143 §11.2.2.1).
const (
	AHSExtendedCDB = 1
	AHSBidiRead    = 2
)
