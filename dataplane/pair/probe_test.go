package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// probeSent takes the first probe of the peer's disk that was sent, nil if there is none.
func (r *rig) probeSent() *Msg {
	for i, x := range r.queue {
		if x.Kind == ActSend && x.Msg.Type == MsgFlush && x.Msg.Flags&FlagProbe != 0 {
			r.queue = append(r.queue[:i:i], r.queue[i+1:]...)
			return x.Msg
		}
	}
	return nil
}

// hung is a node that has an entry of the log under way for longer than Dm, beside a peer that
// moves or is of 0.1.0, and the probe that it has sent.
func hung(t *testing.T, moves bool) (r *rig, probe *Msg) {
	t.Helper()
	r = paired(t, B)
	if moves {
		peerMoves(r)
	}
	r.recv(&Msg{Type: MsgAppend, Epoch: r.m.rec.Epoch, Aux: int64(r.m.log.index + 1), Meta: []byte("x")})
	r.next(ActAppend)
	for range 100 {
		if probe = r.probeSent(); probe != nil {
			return r, probe
		}
		r.live(100 * ms)
	}
	t.Fatal("the peer's disk is not asked")
	return nil, nil
}

// A peer that is about to exclude this node passes a probe over. If it stays a member, the probe is
// repeated; a node that waited for its answer would stay a member with a disk that has stopped.
func TestProbeThatIsPassedOverIsRepeated(t *testing.T) {
	r, first := hung(t, true)
	prompt := r.m.prompt()
	r.live(2 * prompt)
	if r.probeSent() != nil {
		t.Fatal("it is repeated at once")
	}
	r.live(2 * prompt)
	second := r.probeSent()
	if second == nil || second.ID == first.ID {
		t.Fatalf("it is not repeated: %v", second)
	}
	// The answer may be to the first one: it does not say that the disk was prompt.
	r.recv(&Msg{Type: MsgFlushAck, ID: second.ID, Result: scsi.OK})
	if r.live(40 * ms); r.m.leave.why != "" {
		t.Fatal("an answer that may have taken long counts as a prompt one")
	}
	third := r.probeSent()
	if third == nil {
		t.Fatal("no further probe")
	}
	r.recv(&Msg{Type: MsgFlushAck, ID: third.ID, Result: scsi.OK})
	if r.live(3*prompt, r.probes); r.m.leave.why == "" {
		t.Fatal("the peer's disk is well, and a node whose disk does nothing stays")
	}
}

// Disks that stopped for one reason come back a moment apart, and then one may have more to write
// out than the other: that is no reason to leave.
func TestDiskThatComesBackMayWriteOut(t *testing.T) {
	r, probe := hung(t, true)
	r.recv(&Msg{Type: MsgFlushAck, ID: probe.ID, Result: scsi.OK})
	if r.live(r.m.prompt()+writeOut/2, r.probes); r.m.leave.why != "" {
		t.Fatal("the disk here has had no time to write out what its page cache has")
	}
	if r.live(writeOut, r.probes); r.m.leave.why == "" {
		t.Fatal("the peer's disk is well, and a node whose disk does nothing stays")
	}
}

// A node of 0.1.0 would begin one more flush of a disk that has stopped.
func TestProbeIsNotRepeatedForAnEarlierRelease(t *testing.T) {
	r, _ := hung(t, false)
	if r.live(30 * r.m.prompt()); r.probeSent() != nil {
		t.Fatal("repeated")
	}
}

// However often a disk that has stopped is asked, one probe waits at it, and its end answers the
// last question.
func TestOneProbeWaitsAtTheDisk(t *testing.T) {
	r := paired(t, B)
	probe := func(id uint64) {
		r.recv(&Msg{Type: MsgFlush, Flags: FlagProbe, Epoch: r.m.rec.Epoch, ID: id})
	}
	probe(7)
	x := r.next(ActPeerFlush)
	probe(8)
	probe(9)
	r.none(ActPeerFlush)
	r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
	if ack := r.sent(MsgFlushAck); ack.ID != 9 {
		t.Fatalf("the answer is to %d", ack.ID)
	}
	probe(10)
	x = r.next(ActPeerFlush)
	// The link is new: the peer has forgotten what it asked over the old one.
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.queue = nil
	r.linkUp()
	r.sync(r.peerInfo(Paired))
	r.queue = nil
	probe(11)
	y := r.next(ActPeerFlush)
	r.m.Applied(r.now, r.m.link.number-1, x.Msg, scsi.OK)
	r.none(ActSend)
	r.m.Applied(r.now, r.m.link.number, y.Msg, scsi.OK)
	if ack := r.sent(MsgFlushAck); ack.ID != 11 {
		t.Fatalf("the answer is to %d", ack.ID)
	}
}
