package pair

import (
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func TestFoundingNeedsBothNodes(t *testing.T) {
	r := newRig(t, config(A))
	r.arbiter(Missing)
	r.none(ActArbiterCAS) // the nodes have not met
	r.linkUp()
	in := r.peerInfo(Starting)
	in.Empty, in.Durable = true, 0
	r.sync(in)
	if _, ok := r.poll(ActArbiterCAS); !ok {
		t.Fatal("two empty stores have met and no pair is founded")
	}
	want := record(1, A, B)
	if !r.m.arb.want.Equal(&want) {
		t.Fatalf("first record %+v", r.m.arb.want)
	}
	r.m.ArbiterDone(r.now, Got, &want, "v1", "")
	r.phase(Starting) // not before the epoch is durable (R2)
	r.saved()
	r.phase(Paired)
}

func TestFoundingIsNodeAsOnly(t *testing.T) {
	r := newRig(t, config(B))
	r.arbiter(Missing)
	r.linkUp()
	in := r.peerInfo(Starting)
	in.Empty, in.Durable = true, 0
	r.sync(in)
	r.pass(lease)
	r.none(ActArbiterCAS)
	r.got(record(1, A, B), "v1")
	r.saved()
	r.phase(Paired)
}

func TestRefusesRecords(t *testing.T) {
	foreign := record(9, A, B)
	foreign.Pair = "other"
	two := record(9, A, A)
	for name, c := range map[string]struct {
		durable uint64
		rec     *Record
		says    string
	}{
		"older than the durable epoch":   {10, ptr(record(9, A, B)), "rolled back"},
		"missing though there was one":   {1, nil, "force the surviving node"},
		"of another pair":                {0, &foreign, "check --arbiter"},
		"that names a node twice":        {0, &two, "member 1"},
		"without members":                {0, ptr(record(9)), "0 members"},
		"whose member has no store name": {0, &Record{Cluster: "c", Pair: "p", Epoch: 1, Members: []Member{{Node: A}}}, `store ""`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(A)
			cfg.DurableEpoch = c.durable
			r := newRig(t, cfg)
			if c.rec == nil {
				r.arbiter(Missing)
			} else {
				r.got(*c.rec, "v")
			}
			r.phase(Fenced)
			r.reason(c.says)
			o := r.submit(r.op(scsi.OpRead, 0, 512))
			r.ended(o, scsi.Unavailable)
			// Never again in this life, whatever the arbiter says.
			r.pass(2 * lease)
			r.none(ActArbiterCAS)
			r.phase(Fenced)
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestFoundingRefusesStoresWithData(t *testing.T) {
	for name, change := range map[string]func(*Config, *SyncInfo){
		"ours has LUNs":   func(c *Config, _ *SyncInfo) { c.Empty = false },
		"theirs has LUNs": func(_ *Config, in *SyncInfo) { in.Empty = false },
		"theirs acted":    func(_ *Config, in *SyncInfo) { in.Durable = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, in := config(A), SyncInfo{Phase: Starting, Empty: true, Store: "store-b", Incarnation: inc("boot-b", 2)}
			change(&cfg, &in)
			r := newRig(t, cfg)
			r.arbiter(Missing)
			r.linkUp()
			r.sync(in)
			r.phase(Fenced)
			r.reason("record of this pair was lost")
			r.none(ActArbiterCAS)
		})
	}
}

// A fenced node reads the record again whenever its peer tells of a newer one. What it says is said
// once, and again when the reason is another.
func TestFencedSaysSoOnce(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch = 9
	r := newRig(t, cfg)
	said := func(want ...string) {
		t.Helper()
		r.pull()
		if !slices.EqualFunc(r.texts, want, strings.Contains) {
			t.Fatalf("said %q, want %q", r.texts, want)
		}
	}
	r.arbiter(Missing)
	said("starting -> fenced", "fenced: the arbiter has no record")
	r.linkUp()
	in := r.peerInfo(Alone)
	in.Epoch = 10
	for range 8 {
		r.sync(in)
		r.arbiter(Missing)
	}
	said("starting -> fenced", "fenced: the arbiter has no record")
	r.sync(in)
	r.got(record(8, B), "v8")
	said("starting -> fenced", "fenced: the arbiter has no record", "fenced: the arbiter's record has epoch 8")
}

// The same epoch with other members: the arbiter was rolled back and both of its histories went on.
func TestForkedRecordFences(t *testing.T) {
	r := alone(t, A)
	r.m.get(r.now)
	r.got(record(6, B), "v9")
	r.phase(Fenced)
	r.reason("another record of epoch 6")
}

// An exclude whose outcome is unknown: the record is read, still the old one, so the write may land
// yet. It is barred by a successor of the same content before anything else (R2).
func TestUnknownOutcomeIsBarred(t *testing.T) {
	r := paired(t, A)
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce = 77
	r.sync(in)
	first := r.cas()
	r.m.ArbiterDone(r.now, Unknown, nil, "", "timeout")
	r.pass(200 * ms)
	r.got(record(5, A, B), "v5")
	noop := r.cas()
	if old := record(5, A, B); !noop.Record.Equal(&old) || noop.Version != "v5" {
		t.Fatalf("not a no-op successor: %+v at %s", noop.Record, noop.Version)
	}
	r.won(noop, "v6")
	r.pass(50 * ms)
	again := r.cas()
	if again.Version != "v6" || again.Record.Epoch != first.Record.Epoch {
		t.Fatalf("%+v at %s", again.Record, again.Version)
	}
	r.phase(Paired)
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	if o.stage != stHeld {
		t.Fatalf("R1d: served while an exclude is unresolved (stage %d)", o.stage)
	}
}

func TestUnknownOutcomeThatLanded(t *testing.T) {
	r := paired(t, A)
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce = 77
	r.sync(in)
	x := r.cas()
	r.m.ArbiterDone(r.now, Unknown, nil, "", "timeout")
	r.pass(200 * ms)
	r.got(*x.Record, "v6")
	r.saved()
	r.phase(Alone)
}

func TestLosingTheRaceToExclude(t *testing.T) {
	r := paired(t, B)
	r.m.LinkDown(r.now, r.m.link.number, true)
	r.pass(2 * lease)
	r.next(ActArbiterCAS)
	r.m.ArbiterDone(r.now, Conflict, nil, "", "")
	r.got(record(6, A), "v6")
	r.saved()
	r.phase(Outside)
	r.reason("waiting for the other node to readmit this node")
}

func TestLeaseEndsService(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	r.now = r.m.lease.until
	r.m.StoreDone(r.now, r.next(ActStore).Op, scsi.OK)
	r.none(ActReply) // a status only under a valid lease (R1)
	r.pass(10 * ms)
	if !r.m.excl.active {
		t.Fatal("a lapsed lease starts no exclude")
	}
	r.next(ActProveHosts) // the silence may be this node's own (R11b)
	r.none(ActDropHosts)  // a session that is made again costs its host seconds
	r.pass(2 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	r.phase(Alone)
	r.ended(o, scsi.OK)
}

// One way dead: heartbeats that are not answered must not be answered either, so that one of the
// two gives up; a new two-way handshake calls the exclude off as long as the arbiter was not asked.
func TestHandshakeCallsExcludeOff(t *testing.T) {
	r := paired(t, B)
	r.pass(lease + 20*ms)
	if !r.m.excl.active {
		t.Fatal("silence starts no exclude")
	}
	r.recv(&Msg{Type: MsgHeartbeat, ID: 9, Aux: 9})
	r.notSent(MsgHeartbeatAck)
	in := r.peerInfo(Paired)
	r.sync(in)
	if r.m.excl.active || !r.m.link.agreed {
		t.Fatal("a two-way handshake does not call the exclude off")
	}
	r.beat()
	r.none(ActArbiterCAS)
}

func TestStoreFailureStepsDown(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	r.stored(scsi.ReadError)
	r.ended(o, scsi.Unavailable) // the host goes to the other path, it sees no error
	if m := r.sent(MsgSync); m == nil || r.m.leave.why == "" {
		t.Fatal("no consent is sent")
	}
	late := r.submit(r.op(scsi.OpRead, 0, 512))
	r.ended(late, scsi.Unavailable)
	r.m.get(r.now)
	r.got(record(6, B), "v6")
	r.saved()
	r.phase(Outside)
	r.none(ActArbiterCAS)
}

func TestStoreFailureAloneFences(t *testing.T) {
	r := alone(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 512))
	if x := r.stored(scsi.WriteError); !x.Durable {
		t.Fatal("R1b: alone means write-through")
	}
	r.ended(o, scsi.WriteError)
	r.phase(Fenced)
	r.reason("check the disk")
}

// Our own exclude lands after the disk failed: this node is the record's only member and must not
// serve.
func TestExcludeThatLandsAfterSteppingDown(t *testing.T) {
	r := paired(t, A)
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce = 77
	r.sync(in)
	x := r.cas()
	r.m.StoreFailed(r.now, "fsync")
	r.won(x, "v6")
	r.saved()
	r.phase(Fenced)
	if r.m.Serving(r.now) {
		t.Fatal("serves from a failed store")
	}
}

func TestEpochThatCannotBeSaved(t *testing.T) {
	r := paired(t, A)
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce = 77
	r.sync(in)
	r.won(r.cas(), "v6")
	x := r.next(ActSaveEpoch)
	r.m.EpochSaved(r.now, x.Record.Epoch, false)
	r.phase(Fenced)
	r.reason("check the disk")
}

// The handshake comes through and heartbeats do not: calling the exclude off for ever would serve
// no host.
func TestExcludeIsCalledOffOnce(t *testing.T) {
	r := paired(t, B)
	r.pass(lease + 20*ms)
	r.sync(r.peerInfo(Paired))
	if !r.m.link.agreed {
		t.Fatal("not called off")
	}
	r.pass(lease + 20*ms)
	if !r.m.excl.active {
		t.Fatal("heartbeats stay away and no exclude begins")
	}
	for range 5 {
		r.sync(r.peerInfo(Paired))
		if r.m.link.agreed {
			t.Fatal("called off again")
		}
	}
	r.pass(2 * lease)
	r.cas()
}
