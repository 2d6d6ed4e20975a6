package pair

import (
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A partner that does not run may still take the frames that are queued for it, under the old
// epoch. They refer to the buffers of writes that end when this node is alone: the link goes first.
func TestLinkDropsBeforeWritesEndAlone(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 512))
	r.sent(MsgMirror)
	r.pass(3 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	r.phase(Alone)
	at := func(k ActionKind) int { return slices.IndexFunc(r.queue, func(x Action) bool { return x.Kind == k }) }
	r.pull()
	if drop, store := at(ActDropLink), at(ActStore); drop < 0 || store < drop {
		t.Fatalf("the link drops at %d, the write continues at %d: %s", drop, store, r.dump())
	}
	r.m.StoreDone(r.now, r.next(ActStore).Op, scsi.OK)
	r.ended(o, scsi.OK)
}

// Without writes under way there is nothing to protect: the peer learns of the epoch over the link.
func TestLinkStaysWhenNothingIsUnderWay(t *testing.T) {
	r := paired(t, A)
	r.pass(3 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	r.phase(Alone)
	r.none(ActDropLink)
}
