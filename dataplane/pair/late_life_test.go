package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// ofSession gives an op the nexus of another session of the host, whose path is here, too.
func (r *rig) ofSession(o *Op, session byte, l *scsi.Liveness) *Op {
	o.Cmd.Nexus.ISID[5] = session
	o.Cmd.Liveness = l
	r.m.hosts.table[pathKey{o.LUN, o.Cmd.Nexus.Initiator}][o.Cmd.Nexus] = true
	return o
}

func (r *rig) write(off int64, l *scsi.Liveness) *Op {
	return r.submit(r.ofSession(r.op(scsi.OpWrite, off, 512), 1, l))
}

func (r *rig) completes(o *Op) {
	r.t.Helper()
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
}

// reads has another session start a command.
func (r *rig) reads() {
	r.t.Helper()
	o := r.submit(r.ofSession(r.op(scsi.OpRead, 1<<20, 512), 2, new(scsi.Liveness)))
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
}

// Where a round trip takes longer than a sign of life lasts, a write starts as long as no other
// nexus has started a command since: its host cannot have gone on.
func TestWriteOverALongRoundTrip(t *testing.T) {
	for name, self := range map[string]func(*testing.T) *rig{"paired": func(t *testing.T) *rig { return paired(t, A) },
		"after a transfer": func(t *testing.T) *rig {
			r := paired(t, A)
			r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
			r.calm(1000 * ms)
			r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 3}})
			return r
		}} {
		t.Run(name, func(t *testing.T) {
			r := self(t)
			life := new(scsi.Liveness)
			life.Answered(r.now)
			for range 3 {
				r.calm(4 * proofMax)
				o := r.write(0, life)
				r.none(ActProve)
				r.completes(o)
			}
			r.reads()
			held := r.write(0, life) // the other session may be where the host has gone on
			r.next(ActProve)
			r.notSent(MsgMirror)
			life.Answered(r.now)
			r.m.Proved(r.now, life)
			r.completes(held)
		})
	}
}

// That no other nexus has started a command is known for this node's time as the owner only, and
// from the end of a snapshot on.
func TestStartsElsewhereAreNotKnown(t *testing.T) {
	for name, happen := range map[string]func(*rig){
		"a transfer and back": func(r *rig) {
			r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
			r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 3}})
		},
		"a snapshot": func(r *rig) {
			r.m.Quiesce(r.now, 1, []LUNID{lun1}, 1000*ms)
			r.next(ActQuiet)
			r.m.Release(r.now, 1)
		},
		"a command that the peer forwards": func(r *rig) {
			o := &Op{Cmd: &scsi.Op{Kind: scsi.OpRead, Len: 512, Nexus: scsi.NexusID{Initiator: "iqn.2024-01.org.example:other", Port: 2}}, LUN: lun1, remote: true, seq: 1}
			r.m.Submit(r.now, o)
			r.stored(scsi.OK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := paired(t, A)
			life := new(scsi.Liveness)
			life.Answered(r.now)
			r.calm(2 * proofMax)
			happen(r)
			r.write(0, life)
			r.next(ActProve)
			r.notSent(MsgMirror)
		})
	}
}

// Whether somebody else has started a command is judged when the write starts, not when it begins
// to wait for its range.
func TestCalmIsJudgedAtTheStart(t *testing.T) {
	r := paired(t, A)
	life := new(scsi.Liveness)
	life.Answered(r.now)
	r.calm(4 * proofMax)
	first := r.write(0, life)
	m := r.sent(MsgMirror)
	second := r.write(0, life) // waits for the range
	r.reads()
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(first, scsi.OK)
	r.notSent(MsgMirror)
	r.next(ActProve)
	life.Answered(r.now)
	r.m.Proved(r.now, life)
	r.completes(second)
}

// Where the owner is the other node, it is not known here who else has started a command. A peer of
// release 0.1.0 cannot be sent when the last sign of life was, either.
func TestForwardedWriteWantsAYoungSignOfLife(t *testing.T) {
	r := paired(t, A)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
	life := new(scsi.Liveness)
	life.Answered(r.now)
	r.calm(2 * proofMax)
	r.write(0, life)
	r.next(ActProve)
	r.notSent(MsgForward)
}

// A path switch takes a round trip to the host. Where that is longer than a command is held, the
// switch continues, and serves the command that is repeated.
func TestPathSwitchOutlivesBusy(t *testing.T) {
	r := unowned(t, A)
	life := new(scsi.Liveness)
	write := func() *Op {
		o := r.op(scsi.OpWrite, 0, 512)
		o.Cmd.Liveness = life
		return r.submit(o)
	}
	first := write()
	ask := r.sent(MsgPathSwitch)
	r.recv(&Msg{Type: MsgPathSwitchAck, ID: ask.ID})
	r.next(ActProve)
	sent := r.now
	r.calm(4000 * ms)
	r.ended(first, scsi.Busy)
	r.notSent(MsgPathSwitch)
	r.calm(1000 * ms)
	life.Answered(sent)
	r.m.Proved(r.now, life)
	again := write()
	r.notSent(MsgPathSwitch)
	r.completes(again)
}

// A switch for which no command waits any more neither keeps the peer from its own nor lasts for
// ever.
func TestPathSwitchNobodyWaitsFor(t *testing.T) {
	for _, peer := range []bool{true, false} {
		r := unowned(t, A)
		o := r.op(scsi.OpRead, 0, 512)
		o.Cmd.Liveness = new(scsi.Liveness)
		r.submit(o)
		r.sent(MsgPathSwitch)
		r.calm(4000 * ms)
		r.ended(o, scsi.Busy)
		if !peer {
			r.calm(pathMax)
			if len(r.m.hosts.asks) > 0 {
				t.Error("a switch lasts for ever")
			}
			continue
		}
		r.recv(&Msg{Type: MsgPathSwitch, ID: 31, LUN: lun1, Meta: []byte(testHost)})
		r.m.Drained(r.now, r.next(ActDrain).ID)
		r.sent(MsgPathSwitchAck)
		if len(r.m.hosts.asks) > 0 {
			t.Error("both have the path")
		}
	}
}
