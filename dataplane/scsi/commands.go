package scsi

// Operation codes that code refers to.
const (
	opTestUnitReady  = 0x00
	opRequestSense   = 0x03
	opRead6          = 0x08
	opWrite6         = 0x0a
	opInquiry        = 0x12
	opReserve6       = 0x16
	opRelease6       = 0x17
	opStartStop      = 0x1b
	opPreventAllow   = 0x1e
	opRead10         = 0x28
	opWrite10        = 0x2a
	opWriteVerify10  = 0x2e
	opWriteSame10    = 0x41
	opModeSelect10   = 0x55
	opReserve10      = 0x56
	opRelease10      = 0x57
	opModeSense10    = 0x5a
	opPRIn           = 0x5e
	opPROut          = 0x5f
	opRead16         = 0x88
	opWrite16        = 0x8a
	opWriteVerify16  = 0x8e
	opServiceIn16    = 0x9e
	opReportLUNs     = 0xa0
	opMaintenanceIn  = 0xa3
	opWriteVerify12  = 0xae
	noAction         = -1
	defaultTimeout   = 30 // seconds, recommended command timeout of REPORT SUPPORTED OPERATION CODES
	serviceActionMax = 32
)

type commandFlags byte

const (
	alwaysAnswered commandFlags = 1 << iota // neither unit attentions nor the access state stand before it
	anyAccess                               // answered also when the unit is unavailable through this port
	mediumOp                                // the medium judges access and reservations
	pathEvidence                            // its host may know the path (evidence.go)
)

// command is what the device server knows of an operation code, or of one service action of it.
type command struct {
	op     byte
	action int // noAction, or the service action in byte 1
	usage  []byte
	size   byte // of the CDB, len(usage)
	flags  commandFlags
	kind   AccessKind
	run    func(*Server, *Task) bool
}

// access is the command's kind for reservations; START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL
// depend on what they ask (SPC-4 table 66).
func (c *command) access(t *Task) AccessKind {
	switch c.op {
	case opStartStop:
		if t.CDB[4]&0xf1 == 0x01 {
			return AccessQuery
		}
	case opPreventAllow:
		if t.CDB[4]&0x03 == 0 {
			return AccessQuery
		}
	}
	return c.kind
}

var (
	commands       []command
	direct         [256]*command
	serviceActions [256]*[serviceActionMax]*command
)

// lookupCommand finds the command of a CDB, nil when it is not supported.
func lookupCommand(cdb *[16]byte) *command {
	if c := direct[cdb[0]]; c != nil {
		return c
	}
	if a := serviceActions[cdb[0]]; a != nil {
		return a[cdb[1]&0x1f]
	}
	return nil
}

// u makes a CDB usage map: which bits of the CDB are looked at (SPC-4 §6.35.3). The control byte
// has NACA.
func u(b ...byte) []byte { return b }

const ff = 0xff

// init, because REPORT SUPPORTED OPERATION CODES is in the table that it reports.
func init() {
	add := func(op byte, action int, flags commandFlags, kind AccessKind, usage []byte, run func(*Server, *Task) bool) {
		usage[0] = op
		commands = append(commands, command{op, action, usage, byte(len(usage)), flags, kind, run})
	}
	six := func(b1 byte) []byte { return u(0, b1, ff, ff, ff, 4) }
	ten := func(b1 byte) []byte { return u(0, b1, ff, ff, ff, ff, 0x3f, ff, ff, 4) }
	twelve := func(b1 byte) []byte { return u(0, b1, ff, ff, ff, ff, ff, ff, ff, ff, 0x3f, 4) }
	sixteen := func(b1 byte) []byte {
		return u(0, b1, ff, ff, ff, ff, ff, ff, ff, ff, ff, ff, ff, ff, 0x3f, 4)
	}

	add(opTestUnitReady, noAction, pathEvidence, AccessQuery, u(0, 0, 0, 0, 0, 4), (*Server).testUnitReady)
	add(opRequestSense, noAction, alwaysAnswered, AccessFree, u(0, 1, 0, 0, ff, 4), (*Server).requestSense)
	add(opRead6, noAction, mediumOp|pathEvidence, AccessRead, six(0x1f), (*Server).read)
	add(opWrite6, noAction, mediumOp|pathEvidence, AccessWrite, six(0x1f), (*Server).write)
	add(opInquiry, noAction, alwaysAnswered, AccessFree, u(0, 1, ff, ff, ff, 4), (*Server).inquiry)
	add(0x15, noAction, 0, AccessWrite, u(0, 0x11, 0, 0, ff, 4), (*Server).modeSelect)
	add(opReserve6, noAction, 0, AccessFree, u(0, 0, 0, 0, 0, 4), (*Server).reserve6)
	add(opRelease6, noAction, 0, AccessFree, u(0, 0, 0, 0, 0, 4), (*Server).reserve6)
	add(0x1a, noAction, 0, AccessRead, u(0, 8, ff, ff, ff, 4), (*Server).modeSense)
	add(opStartStop, noAction, 0, AccessWrite, u(0, 1, 0, 0x0f, 0xf7, 4), (*Server).startStopUnit)
	add(opPreventAllow, noAction, 0, AccessWrite, u(0, 0, 0, 0, 3, 4), (*Server).preventAllow)
	add(0x25, noAction, 0, AccessQuery, u(0, 0, ff, ff, ff, ff, 0, 0, 1, 4), (*Server).readCapacity10)
	add(opRead10, noAction, mediumOp|pathEvidence, AccessRead, ten(0xf8), (*Server).read)
	add(opWrite10, noAction, mediumOp|pathEvidence, AccessWrite, ten(0xf8), (*Server).write)
	add(opWriteVerify10, noAction, mediumOp|pathEvidence, AccessWrite, ten(0xf6), (*Server).write)
	add(0x2f, noAction, mediumOp, AccessRead, ten(0xf6), (*Server).verify)
	add(0x34, noAction, 0, AccessRead, ten(0x02), (*Server).prefetch)
	add(0x35, noAction, mediumOp, AccessWrite, ten(0x02), (*Server).synchronizeCache)
	add(opWriteSame10, noAction, mediumOp, AccessWrite, ten(0xf8), (*Server).writeSame)
	add(0x42, noAction, mediumOp, AccessWrite, u(0, 1, 0, 0, 0, 0, 0x3f, ff, ff, 4), (*Server).unmap)
	add(0x4d, noAction, 0, AccessQuery, u(0, 1, ff, ff, 0, ff, ff, ff, ff, 4), (*Server).logSense)
	add(opModeSelect10, noAction, 0, AccessWrite, u(0, 0x11, 0, 0, 0, 0, 0, ff, ff, 4), (*Server).modeSelect)
	add(opReserve10, noAction, 0, AccessFree, u(0, 0, 0, 0, 0, 0, 0, 0, 0, 4), (*Server).reserve6)
	add(opRelease10, noAction, 0, AccessFree, u(0, 0, 0, 0, 0, 0, 0, 0, 0, 4), (*Server).reserve6)
	add(opModeSense10, noAction, 0, AccessRead, u(0, 0x18, ff, ff, 0, 0, 0, ff, ff, 4), (*Server).modeSense)
	for a := range 4 {
		add(opPRIn, a, 0, AccessQuery, u(0, byte(a), 0, 0, 0, 0, 0, ff, ff, 4), (*Server).persistentReserveIn)
	}
	for a := range 8 {
		add(opPROut, a, 0, AccessFree, u(0, byte(a), ff, 0, 0, ff, ff, ff, ff, 4), (*Server).persistentReserveOut)
	}
	add(opRead16, noAction, mediumOp|pathEvidence, AccessRead, sixteen(0xf8), (*Server).read)
	add(0x89, noAction, mediumOp, AccessWrite,
		u(0, 0xf8, ff, ff, ff, ff, ff, ff, ff, ff, 0, 0, 0, ff, 0x3f, 4), (*Server).compareAndWrite)
	add(opWrite16, noAction, mediumOp|pathEvidence, AccessWrite, sixteen(0xf8), (*Server).write)
	add(0x8b, noAction, mediumOp, AccessWrite, sixteen(0xf8), (*Server).orWrite)
	add(opWriteVerify16, noAction, mediumOp|pathEvidence, AccessWrite, sixteen(0xf6), (*Server).write)
	add(0x8f, noAction, mediumOp, AccessRead, sixteen(0xf6), (*Server).verify)
	add(0x90, noAction, 0, AccessRead, sixteen(0x02), (*Server).prefetch)
	add(0x91, noAction, mediumOp, AccessWrite, sixteen(0x02), (*Server).synchronizeCache)
	add(0x93, noAction, mediumOp, AccessWrite, sixteen(0xf9), (*Server).writeSame)
	add(opServiceIn16, 0x10, 0, AccessQuery,
		u(0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, ff, ff, ff, ff, 0, 4), (*Server).readCapacity16)
	add(opServiceIn16, 0x12, mediumOp, AccessRead,
		u(0, 0x12, ff, ff, ff, ff, ff, ff, ff, ff, ff, ff, ff, ff, 0, 4), (*Server).getLBAStatus)
	add(opReportLUNs, noAction, alwaysAnswered, AccessFree,
		u(0, 0, ff, 0, 0, 0, ff, ff, ff, ff, 0, 4), (*Server).reportLUNs)
	add(opMaintenanceIn, 0x0a, anyAccess, AccessFree,
		u(0, 0xea, 0, 0, 0, 0, ff, ff, ff, ff, 0, 4), (*Server).reportTargetPortGroups)
	add(opMaintenanceIn, 0x0c, 0, AccessQuery,
		u(0, 0x0c, 0x87, ff, ff, ff, ff, ff, ff, ff, 0, 4), (*Server).reportOpcodes)
	add(opMaintenanceIn, 0x0d, 0, AccessQuery,
		u(0, 0x0d, 0x80, 0, 0, 0, ff, ff, ff, ff, 0, 4), (*Server).reportTMFs)
	add(0xa8, noAction, mediumOp|pathEvidence, AccessRead, twelve(0xf8), (*Server).read)
	add(0xaa, noAction, mediumOp|pathEvidence, AccessWrite, twelve(0xf8), (*Server).write)
	add(opWriteVerify12, noAction, mediumOp|pathEvidence, AccessWrite, twelve(0xf6), (*Server).write)
	add(0xaf, noAction, mediumOp, AccessRead, twelve(0xf6), (*Server).verify)

	for i := range commands {
		c := &commands[i]
		if c.action == noAction {
			direct[c.op] = c
			continue
		}
		if serviceActions[c.op] == nil {
			serviceActions[c.op] = new([serviceActionMax]*command)
		}
		serviceActions[c.op][c.action] = c
	}
}
