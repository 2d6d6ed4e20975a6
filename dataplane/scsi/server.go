package scsi

import (
	"log/slog"
	"sync"
)

// Limits of a command. They are reported in VPD page B0h.
const (
	MaxTransfer     = 8 << 20   // bytes one command may move
	maxUnmapBytes   = 512 << 20 // bytes one UNMAP may free
	maxUnmapRanges  = 256       // descriptors of one UNMAP
	maxWriteSame    = 16 << 20  // bytes one WRITE SAME may cover: the range lock is held all the while
	maxCAWBlocks    = 255       // blocks one COMPARE AND WRITE may compare: its length field is one byte
	maxParamList    = 4096      // bytes of a parameter list (MODE SELECT, PERSISTENT RESERVE OUT)
	transitionSecs  = 3         // how long TEST UNIT READY and the like answer BUSY before 02/04/0A
	maxUnitAttnPend = 16        // unit attentions kept per nexus and unit
)

// Config is what a device server needs to know of its node.
type Config struct {
	TargetName string // iSCSI name of the target, the same on both nodes
	Port       uint16 // relative target port identifier and target port group of this node: 1 = a, 2 = b
	Revision   string // product revision level, at most 4 characters; "0001" when empty
	Log        *slog.Logger
	// Blame is called when the execution of a command on the unit panics; the panic goes on. nil:
	// it is not called.
	Blame func(*Unit)
}

// Server is the SCSI device server and task manager of one node (SAM-5 §4.6): the logical units are
// the Cluster's, the I_T nexuses are its own.
type Server struct {
	cluster Cluster
	cfg     Config
	log     *slog.Logger

	mu      sync.Mutex
	nexuses map[*Nexus]struct{}
}

// NewServer makes a device server.
func NewServer(cluster Cluster, cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Revision == "" {
		cfg.Revision = "0001"
	}
	return &Server{cluster: cluster, cfg: cfg, log: cfg.Log, nexuses: make(map[*Nexus]struct{})}
}

// Submit executes a command. It returns true when the task is complete; false when t.Done will be
// called later, once. The fast path (READ and WRITE) takes no allocation beyond t.Alloc.
func (s *Server) Submit(t *Task) (complete bool) {
	sound := false
	defer s.blame(t, &sound)
	complete = s.submit(t)
	sound = true
	return complete
}

// blame tells what a command that panics is about.
func (s *Server) blame(t *Task, sound *bool) {
	if !*sound && t.unit != nil && s.cfg.Blame != nil {
		s.cfg.Blame(t.unit)
	}
}

func (s *Server) submit(t *Task) bool {
	n := t.Nexus
	t.Status, t.Sense, t.DataIn, t.Transfer, t.Aborted, t.Ends = StatusGood, nil, nil, 0, false, nil
	t.serverRef = taskState{}
	t.unit = nil
	number, ok := FlatLUN(t.LUN)
	if ok {
		t.unit = s.cluster.Lookup(n.ID.Initiator, number)
	}
	c := lookupCommand(&t.CDB)
	if t.unit == nil {
		return s.submitNoUnit(t, c)
	}
	if c == nil {
		// An attention comes before any other reason to refuse a command (SAM-5 §5.14).
		if n.pending.Load() != 0 && n.takeAttention(t) {
			return true
		}
		return t.unsupported()
	}
	if c.flags&alwaysAnswered == 0 {
		if n.pending.Load() != 0 && n.takeAttention(t) {
			return true
		}
		if c.flags&anyAccess == 0 && t.unit.quarantined.Load() {
			return t.notReady(ascManualIntervention)
		}
		if c.flags&mediumOp == 0 && !s.admit(t, c) {
			return true
		}
	}
	// NACA: auto contingent allegiance is not supported (NormACA = 0).
	if t.CDB[c.size-1]&0x04 != 0 {
		return t.invalidCDB(int(c.size)-1, 2)
	}
	if c.flags&pathEvidence != 0 {
		n.noteCommand(t)
	}
	return c.run(s, t)
}

// admit applies what comes before commands that do not go to the medium: the access state and
// reservations. Commands for the medium meet both there, when their execution starts (R9).
func (s *Server) admit(t *Task, c *command) bool {
	switch t.unit.medium.Access() {
	case AccessUnavailable:
		if c.flags&anyAccess == 0 {
			t.unit.transitioning.Store(0)
			t.notReady(ascTargetPortUnavailable)
			return false
		}
	case AccessTransitioning:
		if c.flags&anyAccess == 0 {
			s.transitioning(t)
			return false
		}
	default:
		if t.unit.transitioning.Load() != 0 {
			t.unit.transitioning.Store(0)
		}
	}
	if pr := t.unit.pr.Load(); pr != nil && pr.Conflict(&t.Nexus.ID, c.access(t)) {
		t.Status = StatusReservationConflict
		return false
	}
	return true
}

// transitioning answers a command that no medium can hold. Some hosts fail a path on the first
// 04/0A, so it comes only after BUSY has been said for as long as a transition may take.
func (s *Server) transitioning(t *Task) {
	since := &t.unit.transitioning
	if since.CompareAndSwap(0, t.Arrived) || t.Arrived-since.Load() < transitionSecs*1e9 {
		t.Status = StatusBusy
		return
	}
	t.notReady(ascTransition)
}

// submitNoUnit answers for a LUN that is not there: INQUIRY says so in the peripheral qualifier,
// REPORT LUNS and REQUEST SENSE work, everything else fails (SAM-5 §5.11, SPC-4 §6.37). Hosts give
// a unit up when they get LOGICAL UNIT NOT SUPPORTED, so a node that does not serve says that it
// does not, whether the LUN is mapped or not.
func (s *Server) submitNoUnit(t *Task, c *command) bool {
	if c != nil {
		switch t.CDB[0] {
		case opInquiry, opReportLUNs, opRequestSense:
			return c.run(s, t)
		}
	}
	e := s.noUnitSense()
	if e.key == NotReady {
		return t.notReady(e.code)
	}
	return t.check(e.key, e.code)
}

// noUnitSense says why no unit was found.
func (s *Server) noUnitSense() sense {
	switch s.cluster.Access() {
	case AccessUnavailable:
		return sense{key: NotReady, code: ascTargetPortUnavailable}
	case AccessTransitioning:
		return sense{key: NotReady, code: ascTransition}
	}
	return sense{key: IllegalRequest, code: ascLUNotSupported}
}

// FlatLUN decodes the LUN formats that a host may use for a small number: peripheral device
// addressing on bus 0 and flat space addressing (SAM-5 §4.7.5, §4.7.7).
func FlatLUN(l uint64) (uint16, bool) {
	if l&0x0000ffffffffffff != 0 {
		return 0, false
	}
	switch top := uint16(l >> 48); top >> 14 {
	case 0:
		return top & 0xff, top < 0x100
	case 1:
		return top & 0x3fff, true
	}
	return 0, false
}

// wireLUN encodes a number the way hosts expect it: peripheral below 256, flat above.
func wireLUN(n uint16) uint64 {
	if n > 0xff {
		n |= 1 << 14
	}
	return uint64(n) << 48
}
