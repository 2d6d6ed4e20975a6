package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func (r *rig) durable() {
	r.t.Helper()
	r.m.Appended(r.now, r.next(ActAppend).Index)
}

func (r *rig) shown(res scsi.Result, outcome string) {
	r.t.Helper()
	r.m.Shown(r.now, r.next(ActShow).Index, res, []byte(outcome), nil)
}

func (r *rig) appended(res scsi.Result, outcome string) {
	r.t.Helper()
	r.durable()
	r.shown(res, outcome)
}

func (r *rig) proposedAs(id uint64, res scsi.Result, outcome string) {
	r.t.Helper()
	x := r.next(ActProposed)
	if x.ID != id || x.Result != res || string(x.Meta) != outcome {
		r.t.Fatalf("proposal %d ended %v %q, want %d %v %q", x.ID, x.Result, x.Meta, id, res, outcome)
	}
}

func TestLogAtTheChair(t *testing.T) {
	r := paired(t, A)
	one := r.m.Propose(r.now, []byte("one"))
	two := r.m.Propose(r.now, []byte("two"))
	a := r.sent(MsgAppend)
	if a.Aux != 1 || string(a.Meta) != "one" {
		t.Fatalf("%+v", a)
	}
	r.durable() // while the peer is at work
	r.none(ActShow)
	r.notSent(MsgAppend) // one at a time
	r.none(ActAppend)
	r.recv(&Msg{Type: MsgAppendAck, Aux: 1, Meta: []byte("x")})
	r.shown(scsi.OK, "x")
	r.proposedAs(one, scsi.OK, "x")
	r.sent(MsgAppend)
	r.recv(&Msg{Type: MsgAppendAck, Aux: 1}) // an old answer
	r.none(ActShow)
	r.recv(&Msg{Type: MsgAppendAck, Aux: 2, Result: scsi.NoSpace, Meta: []byte("the peer's disk is full")})
	r.none(ActShow) // it is not durable here
	r.appended(scsi.OK, "fine here")
	r.proposedAs(two, scsi.NoSpace, "the peer's disk is full") // the worse outcome counts
}

func TestLogAtTheOther(t *testing.T) {
	r := paired(t, B)
	id := r.m.Propose(r.now, []byte("one"))
	p := r.sent(MsgPropose)
	r.recv(&Msg{Type: MsgAppend, Aux: 1, Front: p.Front, FrontN: p.ID, Meta: p.Meta})
	r.appended(scsi.OK, "x")
	if a := r.sent(MsgAppendAck); a.Aux != 1 || string(a.Meta) != "x" {
		t.Fatalf("%+v", a)
	}
	r.recv(&Msg{Type: MsgAppend, Aux: 1, Front: p.Front, FrontN: p.ID, Meta: p.Meta}) // asked again after a break
	r.none(ActAppend)
	if a := r.sent(MsgAppendAck); a.Aux != 1 || string(a.Meta) != "x" {
		t.Fatalf("%+v", a)
	}
	r.recv(&Msg{Type: MsgAppend, Aux: 5, Meta: p.Meta}) // a gap is never applied
	r.none(ActAppend)
	r.recv(&Msg{Type: MsgProposeResult, ID: id, Meta: []byte("x")})
	r.proposedAs(id, scsi.OK, "x")
}

func TestChairAnswersADuplicateProposal(t *testing.T) {
	r := paired(t, A)
	p := &Msg{Type: MsgPropose, ID: 3, Front: 2, Aux: 3, Meta: []byte("one")}
	r.recv(p)
	r.recv(p)
	r.sent(MsgAppend)
	r.notSent(MsgAppend)
	r.recv(&Msg{Type: MsgAppendAck, Aux: 1})
	r.appended(scsi.OK, "x")
	r.sent(MsgProposeResult)
	r.recv(p)
	if x := r.sent(MsgProposeResult); x.ID != 3 || string(x.Meta) != "x" {
		t.Fatalf("%+v", x)
	}
	r.notSent(MsgAppend)
}

// R14: what a joiner copies from an object of its own is named as incomplete; a member's is not.
func TestAppendOfAJoiner(t *testing.T) {
	for _, joining := range []bool{false, true} {
		r := paired(t, B)
		if joining {
			r.m.setPhase(r.now, Outside, "")
			r.m.resync.joined = true
		}
		r.recv(&Msg{Type: MsgAppend, Aux: 1, Front: 1, FrontN: 1, Meta: []byte("one")})
		if x := r.next(ActAppend); x.Joining != joining {
			t.Errorf("joining %v: %+v", joining, x)
		}
	}
}

// The chair dies after the peer applied an entry: the survivor knows its outcome and does not apply
// it twice.
func TestLogSurvivesTheChair(t *testing.T) {
	r := paired(t, B)
	id := r.m.Propose(r.now, []byte("one"))
	p := r.sent(MsgPropose)
	r.recv(&Msg{Type: MsgAppend, Aux: 1, Front: p.Front, FrontN: p.ID, Meta: p.Meta})
	r.appended(scsi.OK, "x")
	other := r.m.Propose(r.now, []byte("two")) // never reached the chair
	r.aloneByCrash()
	r.proposedAs(id, scsi.OK, "x")
	r.m.SelfFlushed(r.now, true)
	a := r.next(ActAppend)
	if a.Index != 2 || string(a.Meta) != "two" {
		t.Fatalf("%+v", a)
	}
	r.m.Appended(r.now, 2)
	r.shown(scsi.OK, "y")
	r.proposedAs(other, scsi.OK, "y")
}

func TestProposalsOfANodeThatIsOut(t *testing.T) {
	r := paired(t, B)
	id := r.m.Propose(r.now, []byte("one"))
	r.m.get(r.now)
	r.got(record(6, A), "v6")
	r.saved()
	r.proposedAs(id, scsi.Unavailable, "")
	late := r.m.Propose(r.now, []byte("two"))
	r.proposedAs(late, scsi.Unavailable, "")
}

// What only the chair has made durable is shown once it is alone; and once it is out, without an
// outcome: its tables are what it has.
func TestEntryThatOnlyTheChairHas(t *testing.T) {
	begun := func() (*rig, uint64) {
		r := paired(t, A)
		id := r.m.Propose(r.now, []byte("one"))
		r.durable()
		r.none(ActShow)
		return r, id
	}
	r, id := begun()
	r.aloneByCrash()
	r.shown(scsi.OK, "x")
	r.proposedAs(id, scsi.OK, "x")

	r, id = begun()
	r.m.get(r.now)
	r.got(record(6, B), "v6")
	r.saved()
	r.proposedAs(id, scsi.Unavailable, "")
	r.shown(scsi.OK, "x")
	if v := r.m.View(r.now); v.LogIndex != 1 || r.m.log.stage != logIdle {
		t.Fatalf("at index %d, stage %d", v.LogIndex, r.m.log.stage)
	}

	// Out while it is being made durable.
	r = paired(t, A)
	r.m.Propose(r.now, []byte("one"))
	x := r.next(ActAppend)
	r.m.get(r.now)
	r.got(record(6, B), "v6")
	r.saved()
	r.m.Appended(r.now, x.Index)
	r.shown(scsi.OK, "x")
}

// The peer may be done before the chair's disk is, and the chair alone before its disk is.
func TestEntryThatTheChairHasLast(t *testing.T) {
	r := paired(t, A)
	id := r.m.Propose(r.now, []byte("one"))
	x := r.next(ActAppend)
	r.aloneByCrash()
	r.none(ActShow)
	r.m.Appended(r.now, x.Index+1) // none that was asked for
	r.none(ActShow)
	r.m.Appended(r.now, x.Index)
	r.shown(scsi.OK, "x")
	r.proposedAs(id, scsi.OK, "x")
}

// After a break of the link the peer is given the entry again, wherever the chair is with it.
func TestEntryIsSentAgain(t *testing.T) {
	for _, stored := range []bool{false, true} {
		r := paired(t, A)
		r.m.Propose(r.now, []byte("one"))
		r.sent(MsgAppend)
		if stored {
			r.durable()
		}
		r.m.logResend(r.now)
		if a := r.sent(MsgAppend); a.Aux != 1 {
			t.Fatalf("%+v", a)
		}
	}
}

// A resync begins between two entries, although a next one always waits: on a slow disk callers
// would keep redundancy from coming back for as long as they call.
func TestResyncHasItsTurnBetweenEntries(t *testing.T) {
	r := alone(t, A)
	for range 3 {
		r.m.Propose(r.now, []byte("change"))
	}
	first := r.next(ActAppend)
	r.linkUp()
	r.sync(r.joiner())
	r.none(ActExport) // an entry is under way
	r.m.Appended(r.now, first.Index)
	r.shown(scsi.OK, "")
	r.none(ActAppend)
	r.next(ActExport)
}

// Everything is flushed at the joiner when no entry is under way: the joiner may have an entry long
// before this node's slow disk, and the two are admitted at equal indexes only.
func TestJoinerIsFlushedBetweenEntries(t *testing.T) {
	r := joining(t)
	r.alike()
	r.next(ActResyncList)
	r.m.Propose(r.now, []byte("change"))
	r.m.Propose(r.now, []byte("another one"))
	entry := r.next(ActAppend)
	at := r.sent(MsgAppend).Aux
	r.m.ResyncObjects(r.now, r.objects())
	r.recv(&Msg{Type: MsgAppendAck, Aux: at})
	r.notSent(MsgFlushAll)
	r.m.Appended(r.now, entry.Index)
	r.notSent(MsgFlushAll)
	r.shown(scsi.OK, "")
	r.sent(MsgFlushAll)
	r.none(ActAppend) // the other one waits until it is a member
	r.recv(&Msg{Type: MsgFlushAllAck, Aux: at})
	r.saveState()
	r.cas()
}

// What waited for a resync that stops is done then: its caller, and all that wait for that one,
// would wait until somebody else has a change.
func TestEntriesContinueAfterAResyncThatStops(t *testing.T) {
	r := alone(t, A)
	r.linkUp()
	r.sync(r.joiner())
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, []byte("all"), nil, r.objects())
	r.m.Propose(r.now, []byte("change"))
	r.none(ActAppend)
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.pull()
	r.next(ActAppend)
}
