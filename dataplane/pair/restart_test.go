package pair

import (
	"fmt"
	"strings"
	"testing"
)

func TestColdStartWaits(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty = 5, false
	cfg.Incarnation = inc("another boot", 9)
	r := newRig(t, cfg)
	r.got(record(5, A, B), "v5")
	r.phase(Outside)
	r.pass(100 * lease)
	r.none(ActArbiterCAS)
	r.reason("coldStart: Wait")
}

// claims plays the flush that comes before a node asks for {self} from outside, and returns what it
// asks for. Before the flush it must not ask: what was acknowledged may be in the page cache only.
func (r *rig) claims() (Action, bool) {
	r.t.Helper()
	r.none(ActArbiterCAS)
	if _, ok := r.poll(ActFlushAll); !ok {
		return Action{}, false
	}
	r.m.SelfFlushed(r.now, true)
	if _, ok := r.poll(ActSaveState); ok {
		r.none(ActArbiterCAS) // what may be lost is on record before the record names this boot (R8)
		r.m.StateSaved(r.now, r.m.saved.stateID, true)
	}
	return r.cas(), true
}

func (r *rig) claim() Action {
	r.t.Helper()
	x, ok := r.claims()
	if !ok {
		r.t.Fatalf("it does not claim: %s", r.dump())
	}
	return x
}

// A store that cannot be flushed is no source.
func TestFailedFlushClaimsNothing(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty = 6, false
	cfg.Incarnation.Nonce = 9
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, false)
	r.pass(10 * lease)
	r.none(ActArbiterCAS)
	r.reason("check the disk")
}

// The process died and its peer is away: same boot, so the store is as good, and the peer's lease
// has run out.
func TestWarmStartTakesOver(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty, cfg.Start = 5, false, 1000*ms
	cfg.Incarnation.Nonce = 9
	r := newRig(t, cfg)
	r.got(record(5, A, B), "v5")
	r.pass(lease)
	r.none(ActArbiterCAS)
	r.pass(2 * lease)
	if x := r.claim(); x.Record.Members[0].Incarnation != cfg.Incarnation || len(x.Record.Members) != 1 {
		t.Fatalf("%+v", x.Record)
	}
}

func TestUntrustedStoreIsNoSource(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty, cfg.Untrusted = 5, false, "fsync failed"
	cfg.Incarnation.Nonce = 9
	r := newRig(t, cfg)
	r.got(record(5, A, B), "v5")
	r.pass(10 * lease)
	r.none(ActArbiterCAS)
	r.reason("fsync failed")
}

// A lone member that restarts renews its membership, after a reboot too: alone means write-through.
func TestLoneMemberRenews(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty = 6, false
	cfg.Incarnation = inc("another boot", 9)
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	x := r.claim()
	if x.Record.Epoch != 7 || x.Record.Members[0].Incarnation != cfg.Incarnation {
		t.Fatalf("%+v", x.Record)
	}
	r.won(x, "v7")
	r.saved()
	r.phase(Alone)
}

func TestLoneMemberWithAnotherDisk(t *testing.T) {
	cfg := config(A)
	cfg.Store = "new-disk"
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	r.saved()
	r.pass(10 * lease)
	r.none(ActArbiterCAS)
	r.reason("put back the disk with store")
}

func TestBothRestarted(t *testing.T) {
	for _, c := range []struct {
		self             Node
		mine, theirs     bool // boot kept
		source           bool
		storeB, bootText string
	}{
		{self: A, mine: true, theirs: false, source: true},
		{self: B, mine: true, theirs: false, source: true},
		{self: A, mine: false, theirs: true, source: false},
		{self: B, mine: false, theirs: true, source: false},
		{self: A, mine: true, theirs: true, source: true},
		{self: B, mine: true, theirs: true, source: false},
		{self: A, mine: false, theirs: false, source: true},
		{self: B, mine: false, theirs: false, source: false},
	} {
		t.Run(fmt.Sprintf("%v kept %v, peer kept %v", c.self, c.mine, c.theirs), func(t *testing.T) {
			cfg := config(c.self)
			cfg.DurableEpoch, cfg.Empty, cfg.Start = 5, false, 1000*ms
			cfg.Incarnation.Nonce, cfg.Lock, cfg.State.Lock = 91, "8:1", "8:1"
			if !c.mine {
				cfg.Incarnation.Boot = "rebooted"
			}
			r := newRig(t, cfg)
			r.linkUp()
			r.got(record(5, A, B), "v5")
			in := r.peerInfo(Outside)
			in.Incarnation.Nonce = 92
			if !c.theirs {
				in.Incarnation.Boot = "rebooted too"
			}
			r.sync(in)
			if !c.theirs || !c.mine { // an earlier process may be on another machine
				r.none(ActFlushAll)
				r.pass(3 * lease)
			}
			r.pass(10 * ms)
			if _, ok := r.claims(); ok != c.source {
				t.Fatalf("source %v, want %v", ok, c.source)
			}
		})
	}
}

// The peer comes back on a new disk while this node, of the same boot, has restarted too: no other
// node has the data.
func TestPeerWithNewDiskDoesNotBlock(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty, cfg.Start = 5, false, 1000*ms
	cfg.Incarnation.Nonce = 91
	r := newRig(t, cfg)
	r.linkUp()
	r.got(record(5, A, B), "v5")
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce, in.Store = 92, "new-disk"
	r.sync(in)
	r.none(ActArbiterCAS) // the process that the record names may hold a lease yet
	r.pass(3 * lease)
	r.claim()
}

// The member that would take us back steps down: it consents to be excluded.
func TestLeavingMemberYieldsToRestartedPeer(t *testing.T) {
	for _, p := range []Phase{Paired, Fenced} {
		cfg := config(B)
		cfg.DurableEpoch, cfg.Empty = 5, false
		cfg.Incarnation.Nonce = 91
		r := newRig(t, cfg)
		r.linkUp()
		r.got(record(5, A, B), "v5")
		in := r.peerInfo(p)
		in.Agreed, in.Leaving = false, p == Paired
		r.sync(in)
		r.claim()
	}
}

// A store that was restored from a copy has the right id and lacks what was acknowledged since
// (R6).
func TestRolledBackStoreIsNoSource(t *testing.T) {
	for name, rec := range map[string]Record{"lone member": record(9, B), "both": record(9, A, B)} {
		for durable, source := range map[uint64]bool{7: false, 8: true, 9: true} {
			cfg := config(B)
			cfg.DurableEpoch, cfg.Empty, cfg.Start = durable, false, 1000*ms
			cfg.Incarnation.Nonce = 91
			r := newRig(t, cfg)
			r.got(rec, "v9")
			if durable < 9 {
				r.saved()
			}
			r.pass(3 * lease)
			if _, ok := r.claims(); ok != source {
				t.Errorf("%s, store at epoch %d, record at 9: source %v", name, durable, ok)
			}
			if !source {
				r.reason("older copy")
			}
		}
	}
}

func TestRestartedPeer(t *testing.T) {
	t.Run("same store: consent", func(t *testing.T) {
		r := paired(t, A)
		in := r.peerInfo(Outside)
		in.Incarnation.Nonce = 77
		r.sync(in)
		x := r.cas() // at once: only one process can hold a store
		if x.Record.Epoch != 6 || len(x.Record.Members) != 1 || x.Record.Members[0].Node != A || x.Version != "v5" {
			t.Fatalf("exclude %+v at %s", x.Record, x.Version)
		}
		r.won(x, "v6")
		r.saved()
		r.phase(Alone)
	})
	for name, change := range map[string]func(*SyncInfo){
		"other store":                       func(in *SyncInfo) { in.Store = "new-disk" },
		"same store, other lock":            func(in *SyncInfo) { in.Lock = LockOther },
		"same store, other boot":            func(in *SyncInfo) { in.Incarnation.Boot = "another machine" },
		"same store, release 0.1.0":         func(in *SyncInfo) { in.Lock = LockUnknown },
		"same store, other boot, link down": func(in *SyncInfo) { in.Incarnation.Boot = "another machine" },
	} {
		t.Run(name+": the lease is waited out", func(t *testing.T) {
			r := paired(t, A)
			r.recv(&Msg{Type: MsgHeartbeat, ID: 1, Aux: 5})
			r.sent(MsgHeartbeatAck)
			given := r.now
			if strings.HasSuffix(name, "link down") {
				r.m.LinkDown(r.now, r.m.link.number, true)
				r.linkUp()
			}
			in := r.peerInfo(Outside)
			in.Incarnation.Nonce = 77
			change(&in)
			r.sync(in)
			r.none(ActArbiterCAS)
			r.recv(&Msg{Type: MsgHeartbeat, ID: 2, Aux: 6})
			r.notSent(MsgHeartbeatAck) // R3: from the start of the wait on
			for r.now+10*ms < given+lease+int64(r.m.cfg.Margin) {
				r.pass(10 * ms)
				r.none(ActArbiterCAS)
			}
			r.pass(20 * ms)
			r.cas()
		})
	}
}
