package scsi

import "sync/atomic"

// Liveness is what is known of the initiator at the other end of a nexus (R11). That a command
// arrives proves nothing of it: its bytes may have been on their way, in the send queue of a socket
// that the initiator has closed, for longer than the initiator waited before it continued over
// another path. An answer to a ping proves that it had not given the nexus up when the ping was
// sent.
type Liveness struct {
	at  atomic.Int64
	ask func(done func())
}

// Bind sets how a ping is sent. The transport calls it before the first command. ask calls done
// once, without a lock held, when a ping that was sent at or after the call has been answered, and
// never if none is.
func (l *Liveness) Bind(ask func(done func())) { l.ask = ask }

// Answered reports that a ping that was sent at that time (CLOCK_BOOTTIME ns) has been answered, or
// that the initiator has logged in then.
func (l *Liveness) Answered(sent int64) {
	for {
		old := l.at.Load()
		if sent <= old || l.at.CompareAndSwap(old, sent) {
			return
		}
	}
}

// At is the latest time (CLOCK_BOOTTIME ns) at which the initiator is known not to have given the
// nexus up.
func (l *Liveness) At() int64 { return l.at.Load() }

// Ask sends a ping; see Bind.
func (l *Liveness) Ask(done func()) {
	if l.ask != nil {
		l.ask(done)
	}
}
