package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// The ranges that commands lock (R5).

// setRange computes what an op locks; a flush locks nothing.
func (m *Machine) setRange(o *Op) {
	s := o.Cmd
	o.lock.Shared = s.Kind == scsi.OpRead || s.Kind == scsi.OpMapped || o.copy
	o.lock.Off, o.lock.End = s.Off, s.Off+s.Len
	switch s.Kind {
	case scsi.OpFlush:
		o.lock.Off, o.lock.End = 0, 0
	case scsi.OpMapped:
		o.lock.Off, o.lock.End = s.Off, s.Off+512
	case scsi.OpUnmap:
		for i, r := range s.Ranges {
			if i == 0 || r.Off < o.lock.Off {
				o.lock.Off = r.Off
			}
			if i == 0 || r.Off+r.Len > o.lock.End {
				o.lock.End = r.Off + r.Len
			}
		}
	}
	o.lock.Off, o.lock.End = m.wide(o.lock.Off, o.lock.End)
	o.lock.Granted, o.lock.Of = m.due.lockGranted, o
}

// wide makes a range one of whole blocks: two writes into one block must not be under way at once,
// for each would make a checksum of what it sees itself, and no read may find a block and a
// checksum that are not of one moment.
func (m *Machine) wide(off, end int64) (int64, int64) {
	if off >= end {
		return off, end // a flush, which locks nothing
	}
	b := m.cfg.Block
	end = min(end, 1<<62)
	return off / b * b, end + (b-end%b)%b
}

func (m *Machine) unlock(o *Op) {
	l := &o.unit.locks
	if o.lock.Held() {
		l.Release(&o.lock)
	} else {
		l.Cancel(&o.lock)
	}
}
