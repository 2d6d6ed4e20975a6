package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// ahead is how far the peer's clock is before this node's: the two do not agree.
const ahead = 77_000 * ms

// signing has the peer own the unit, and be of a release that understands signs, or of one before.
func signing(t *testing.T, understands bool) *rig {
	r := paired(t, A)
	in := r.peerInfo(Paired)
	in.Signs = understands
	r.sync(in)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
	r.queue = nil
	return r
}

// beats has a heartbeat come every half second, each of which took a while.
func (r *rig) beats(d int64) {
	for end := r.now + d; r.now < end; {
		r.recv(&Msg{Type: MsgHeartbeat, ID: 1, Aux: r.now - 100*ms + ahead})
		r.calm(500 * ms)
	}
}

// A write that is forwarded over a long round trip to its host says when the last sign of life was,
// by the owner's clock and not later.
func TestForwardedWriteOverALongRoundTrip(t *testing.T) {
	r := signing(t, true)
	r.beats(5000 * ms)
	life := new(scsi.Liveness)
	at := r.now
	life.Answered(at)
	r.beats(4 * proofMax)
	o := r.write(0, life)
	r.none(ActProve)
	f := r.sent(MsgForward)
	var n scsi.NexusID
	rest, err := new(names).decodeNexus(f.Meta, &n)
	if err != nil || n != o.Cmd.Nexus || f.Flags&FlagSign == 0 {
		t.Fatalf("%+v %v", f, err)
	}
	sign, rest, err := decodeSign(rest)
	if err != nil || len(rest) != 0 || sign > at+ahead || sign < at+ahead-1200*ms {
		t.Fatalf("the sign is %d ms from the last one, %v", (sign-at-ahead)/ms, err)
	}
	// Sent again over another link, of whose heartbeats none had come then.
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.linkUp()
	r.queue = nil
	in := r.peerInfo(Paired)
	in.Signs = true
	r.sync(in)
	r.beat()
	if g := r.sent(MsgForward); g.ID != f.ID || string(g.Meta) != string(f.Meta) {
		t.Fatalf("%+v, before %+v", g, f)
	}
	r.recv(&Msg{Type: MsgForwardResult, ID: f.ID})
	r.ended(o, scsi.OK)
}

// A write waits for a young sign if the peer's clock at the time of the last one is not known, and
// if the peer is of a release that would not understand it. With a young one nothing is said.
func TestForwardedWithoutASign(t *testing.T) {
	for name, f := range map[string]func(*testing.T) (*rig, *scsi.Liveness){
		"no heartbeat had come before it": func(t *testing.T) (*rig, *scsi.Liveness) {
			r, life := signing(t, true), new(scsi.Liveness)
			life.Answered(r.now - 1)
			r.beats(2 * proofMax)
			return r, life
		},
		"the link has come up since": func(t *testing.T) (*rig, *scsi.Liveness) {
			r, life := signing(t, true), new(scsi.Liveness)
			r.beats(proofMax)
			life.Answered(r.now)
			r.now += 10 * ms
			r.m.LinkDown(r.now, r.m.link.number, false)
			r.linkUp()
			in := r.peerInfo(Paired)
			in.Signs = true
			r.sync(in)
			r.beat()
			r.beats(2 * proofMax)
			return r, life
		},
		"the peer does not understand": func(t *testing.T) (*rig, *scsi.Liveness) {
			r, life := signing(t, false), new(scsi.Liveness)
			r.beats(proofMax)
			life.Answered(r.now)
			r.beats(2 * proofMax)
			return r, life
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, life := f(t)
			r.write(0, life)
			r.notSent(MsgForward)
			r.next(ActProve)
			life.Answered(r.now)
			r.m.Proved(r.now, life)
			if f := r.sent(MsgForward); f.Flags&FlagSign != 0 {
				t.Fatalf("%+v", f)
			}
		})
	}
}

// signed is a write that the peer forwards for a sign of life at that time.
func (r *rig) signed(id uint64, session byte, sign int64) *Msg {
	o := r.op(scsi.OpWrite, 0, 512)
	o.Cmd.Nexus.Port, o.Cmd.Nexus.ISID[5] = 2, session
	m := r.forward(id, o)
	m.Flags |= FlagSign
	m.Meta = appendSign(m.Meta, sign)
	return m
}

func (r *rig) refuses(id uint64, want scsi.Result) {
	r.t.Helper()
	r.notSent(MsgMirror)
	if x := r.sent(MsgForwardResult); x.ID != id || x.Result != want {
		r.t.Fatalf("%+v", x)
	}
}

// The owner starts a forwarded write with an old sign of life only if no other nexus has started a
// command since.
func TestOwnerJudgesASign(t *testing.T) {
	r := paired(t, A)
	sign := r.now
	r.calm(3 * proofMax)
	for id := range uint64(3) { // its own commands do not count
		r.recv(r.signed(10+id, 1, sign))
		r.mirrorAck(r.sent(MsgMirror), scsi.OK)
		r.stored(scsi.OK)
		if x := r.sent(MsgForwardResult); x.Result != scsi.OK {
			t.Fatalf("%+v", x)
		}
		r.calm(1000 * ms)
	}
	r.reads()
	r.recv(r.signed(20, 1, sign))
	r.refuses(20, scsi.Busy)
	sign = r.now
	r.calm(3 * proofMax)
	r.recv(r.signed(21, 1, sign))
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.sent(MsgForwardResult)
	r.recv(r.signed(22, 2, sign)) // another session of the same node
	r.refuses(22, scsi.Busy)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 3}})
	m := r.signed(23, 1, sign)
	m.Seq = 3
	r.recv(m) // what started at the other node is not known
	r.refuses(23, scsi.Busy)
}

// It is judged again when the write starts.
func TestOwnerJudgesASignAtTheStart(t *testing.T) {
	r := paired(t, A)
	sign := r.now
	r.calm(3 * proofMax)
	r.recv(r.signed(10, 1, sign))
	m := r.sent(MsgMirror)
	r.recv(r.signed(11, 1, sign)) // waits for the range
	r.reads()
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	if x := r.sent(MsgForwardResult); x.ID != 10 || x.Result != scsi.OK {
		t.Fatalf("%+v", x)
	}
	r.refuses(11, scsi.Busy)
}

func TestSignsThatAreNone(t *testing.T) {
	for name, change := range map[string]func(*Msg){
		"missing":  func(m *Msg) { m.Meta = m.Meta[:len(m.Meta)-8] },
		"short":    func(m *Msg) { m.Meta = m.Meta[:len(m.Meta)-1] },
		"zero":     func(m *Msg) { m.Meta = appendSign(m.Meta[:len(m.Meta)-8], 0) },
		"negative": func(m *Msg) { m.Meta = appendSign(m.Meta[:len(m.Meta)-8], -1) },
	} {
		t.Run(name, func(t *testing.T) {
			r := paired(t, A)
			m := r.signed(10, 1, r.now)
			change(m)
			r.recv(m)
			r.refuses(10, scsi.Failed)
		})
	}
}
