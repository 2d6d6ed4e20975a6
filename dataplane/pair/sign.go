package pair

import "encoding/binary"

// A sign of life that is old, for a write that is forwarded (R11). The owner has to know when it was, by the owner's clock, to tell whether
// another nexus has started a command since. The nodes' clocks do not agree, and what a message takes is not known, but heartbeats carry the
// time at which they were sent: whatever the owner did before it sent one, it did before everything that happened here after it came. So
// the time in the last heartbeat that had come when the ping was sent is never later than the sign.

const (
	beatEvery = 250_000_000 // ns between the heartbeats that are remembered
	beatsMax  = 64          // for as long as a sign may be old: a round trip, and the time between attempts of a host
)

// beat is when a heartbeat came, and the peer's clock in it.
type beat struct{ here, there int64 }

// noteBeat remembers the peer's clock, for the life of a link: that is with one process.
func (m *Machine) noteBeat(now, there int64) {
	if n := len(m.beats); n > 0 && (now-m.beats[n-1].here < beatEvery || there < m.beats[n-1].there) {
		return
	}
	if len(m.beats) == beatsMax {
		m.beats = append(m.beats[:0], m.beats[1:]...)
	}
	m.beats = append(m.beats, beat{now, there})
}

// signed is a time by the peer's clock, not later than a time by the clock here; 0: none is known, or the peer could not use it.
func (m *Machine) signed(at int64) int64 {
	if !m.peerKnown || !m.peer.Signs {
		return 0
	}
	for i := len(m.beats) - 1; i >= 0; i-- {
		if m.beats[i].here <= at {
			return m.beats[i].there
		}
	}
	return 0
}

// signedAt is the sign of life that a command was admitted for, by the clock here.
func (o *Op) signedAt() int64 {
	if o.remote {
		return o.sign
	}
	return o.S.Life.At()
}

func appendSign(b []byte, sign int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(sign)) }

func decodeSign(b []byte) (sign int64, rest []byte, err error) {
	if len(b) < 8 {
		return 0, nil, errWire
	}
	if sign = int64(binary.BigEndian.Uint64(b)); sign <= 0 {
		return 0, nil, errWire
	}
	return sign, b[8:], nil
}
