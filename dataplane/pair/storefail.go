package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// A store that has failed (R12).

func (m *Machine) diskFailed(now int64, o *Op, res scsi.Result) {
	if m.phase == Alone {
		// There is no peer to hand over to: the host gets the error, and nothing more is served
		// from this store.
		m.finish(now, o, res)
	} else {
		m.finish(now, o, scsi.Unavailable)
	}
	switch {
	case res == scsi.WriteError:
		m.StoreFailed(now, "a write or flush for a host")
	case m.phase == Paired:
		m.StepDown(now, "the store failed (a read for a host): "+diskFix)
	}
}

// diskFix is what a person has to do about a store that failed; the next process of the node does
// the rest automatically.
const diskFix = "check the disk, and replace it if this error returns"

// StoreFailed reports a failure that belongs to no op: writeback or fsync (R12).
func (m *Machine) StoreFailed(now int64, why string) {
	m.leave.failed = true
	m.StepDown(now, "the store failed ("+why+"): "+diskFix)
	m.settle(now)
}
