package pair

import (
	"maps"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A node that is about to exclude its peer is asked to stop: it steps down, and with the end of its
// link nothing waits any more, without a tick, and without an answer of the arbiter. None of it is
// answered OK.
func TestStepDownWithinAnExclusionEndsWhatWaits(t *testing.T) {
	r := paired(t, A)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1}, {ID: LUNID{2}, Owner: B, Seq: 1}})
	wait := func(want map[string]int) {
		t.Helper()
		if got := r.m.Waiting(); !maps.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
	wait(map[string]int{})
	read := r.submit(r.op(scsi.OpRead, 1<<20, 4096))
	write := r.submit(r.op(scsi.OpWrite, 0, 4096))
	behind := r.submit(r.op(scsi.OpRead, 0, 4096))
	flush := r.submit(r.op(scsi.OpFlush, 0, 0))
	r.m.StoreDone(r.now, r.next(ActFlush).Op, scsi.OK)
	other := r.op(scsi.OpRead, 0, 4096)
	other.LUN = LUNID{2}
	r.m.hosts.table[pathKey{other.LUN, testHost}] = map[scsi.NexusID]bool{{Initiator: testHost, Port: 1}: true}
	r.submit(other)
	wait(map[string]int{WaitsStore: 1, WaitsMirror: 1, WaitsRange: 1, WaitsFlush: 1, WaitsOwner: 1})

	r.m.exclude(r.now, "the peer is silent", false, 0)
	r.pass(lease)
	held := r.submit(r.op(scsi.OpRead, 2<<20, 4096))
	r.stored(scsi.OK) // the read: its answer needs the lease
	r.m.Propose(r.now, []byte("x"))
	wait(map[string]int{WaitsAnswer: 1, WaitsMirror: 1, WaitsRange: 1, WaitsFlush: 1, WaitsOwner: 1, WaitsDecision: 1, WaitsEntry: 1})

	r.m.StepDown(r.now, "orderly stop")
	wait(map[string]int{WaitsMirror: 1, WaitsOwner: 1, WaitsEntry: 1}) // what was sent, until the link ends; the runtime gives up the entry
	r.m.LinkDown(r.now, r.m.link.number, false)
	wait(map[string]int{WaitsEntry: 1})
	for {
		x, ok := r.poll(ActReply)
		if !ok {
			break
		}
		if x.Op.Cmd.Result == scsi.OK {
			t.Errorf("a command is answered OK: %+v", x.Op)
		}
	}
	for _, o := range []*Op{read, write, behind, flush, other, held} {
		if o.stage != stDone || o.Cmd.Result != scsi.Unavailable {
			t.Errorf("stage %d, %v", o.stage, o.Cmd.Result)
		}
	}
}

// The same for a lone node that has to ask the arbiter before it answers.
func TestStepDownOfALoneNodeEndsWhatWaits(t *testing.T) {
	r := alone(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 4096))
	r.m.unsure = 1
	r.stored(scsi.OK)
	if got := r.m.Waiting(); !maps.Equal(got, map[string]int{WaitsAnswer: 1}) {
		t.Fatalf("%v", got)
	}
	r.m.StepDown(r.now, "orderly stop")
	r.ended(o, scsi.Unavailable)
	if got := r.m.Waiting(); len(got) > 0 {
		t.Fatalf("%v", got)
	}
}
