package pair

import (
	"fmt"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The partner of a process that has been reaped waits for no lease.
func TestTestimonyReplacesTheLease(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 512))
	r.sent(MsgMirror)
	r.m.PeerEnded(r.now, []Incarnation{inc("boot-b", 2)})
	r.reason("the peer's process has ended")
	x := r.cas()
	if want := record(6, A); !x.Record.Equal(&want) || x.Version != "v5" {
		t.Fatalf("asks for %+v in place of %s", x.Record, x.Version)
	}
	if r.m.Serving(r.now) {
		t.Fatal("serves before the record is known")
	}
	r.won(x, "v6")
	r.saved()
	r.phase(Alone)
	if x := r.stored(scsi.OK); !x.Durable {
		t.Fatal("is not written through")
	}
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	r.ended(o, scsi.OK)
	if r.m.Stats.Testified != 1 {
		t.Fatalf("%d are counted", r.m.Stats.Testified)
	}
}

// A testimony ends the wait of an exclude that has begun, and no handshake calls that off.
func TestTestimonyEndsTheWait(t *testing.T) {
	r := paired(t, A)
	r.m.LinkDown(r.now, r.m.link.number, true)
	r.pass(lease / 2)
	r.none(ActArbiterCAS)
	r.m.PeerEnded(r.now, []Incarnation{inc("boot-b", 2)})
	r.cas()
}

// It concerns the processes that it names, whenever it comes.
func TestTestimonyNamesOneProcess(t *testing.T) {
	r := paired(t, A)
	r.m.PeerEnded(r.now, []Incarnation{inc("boot-b", 1), inc("boot-b", 3), inc("boot-a", 2)})
	r.pull()
	if !r.m.Serving(r.now) || r.m.excl.active {
		t.Fatalf("an earlier process has ended: %s", r.m.reason)
	}
	r.none(ActArbiterCAS)
}

// It may come before the node knows the record that names the process.
func TestTestimonyBeforeTheRecord(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty = 4, false
	r := newRig(t, cfg)
	r.m.PeerEnded(r.now, []Incarnation{inc("boot-b", 2)})
	r.phase(Starting)
	r.got(record(5, A, B), "v5")
	r.m.PeerEnded(r.now, []Incarnation{inc("boot-b", 2)})
	r.none(ActArbiterCAS) // not while the epoch is being made durable
	r.saved()
	r.cas()
}

// Both processes have ended: the one that starts first waits for no lease of the other, if it is
// the next one of its own node.
func TestTestimonyForARestartedNode(t *testing.T) {
	for _, c := range []struct {
		lock  string
		claim bool
	}{{"8:1", true}, {"8:2", false}} {
		t.Run(fmt.Sprintf("lock %s", c.lock), func(t *testing.T) {
			cfg := config(B)
			cfg.DurableEpoch, cfg.Empty, cfg.Start = 5, false, 1000*ms
			cfg.Incarnation.Nonce, cfg.Lock, cfg.State.Lock = 9, c.lock, "8:1"
			r := newRig(t, cfg)
			r.got(record(5, A, B), "v5")
			r.pass(lease / 2)
			r.none(ActFlushAll)
			r.m.PeerEnded(r.now, []Incarnation{inc("boot-a", 1)})
			if _, ok := r.poll(ActFlushAll); ok != c.claim {
				t.Fatalf("claims the record: %v (%s)", ok, r.m.reason)
			}
		})
	}
}

// A supervisor repeats what it knows, for years.
func TestTestimonyIsBounded(t *testing.T) {
	r := paired(t, A)
	for i := range uint64(3 * maxEnded) {
		r.m.PeerEnded(r.now, []Incarnation{inc("boot-b", 100+i)})
		r.m.PeerEnded(r.now, []Incarnation{inc("boot-b", 100+i)})
	}
	if n := len(r.m.peerEnded); n != maxEnded || !r.m.hasEnded(inc("boot-b", 100+3*maxEnded-1)) {
		t.Fatalf("%d are remembered", n)
	}
}
