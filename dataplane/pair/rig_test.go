package pair

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// rig is one machine with a runtime of queues: actions wait here until the test answers them.
type rig struct {
	t     *testing.T
	m     *Machine
	now   int64
	queue []Action
	syncs uint64 // number of the peer's last sync
	texts []string
	harm  []*Damage // that events reported
}

const (
	ms    = int64(time.Millisecond)
	lease = 500 * ms
)

var lun1 = LUNID{1}

func inc(boot string, nonce uint64) Incarnation { return Incarnation{Boot: boot, Nonce: nonce} }

func config(self Node) Config {
	return Config{Self: self, Cluster: "c", Pair: "p", Block: 512, Store: "store-" + self.String(), Incarnation: inc("boot-"+self.String(), uint64(self)+1),
		Empty: true, Preferred: self == A, Check: func(*scsi.Op, LUNID) scsi.Result { return scsi.OK }}
}

func newRig(t *testing.T, cfg Config) *rig {
	r := &rig{t: t, m: New(cfg), now: 1000 * ms}
	r.m.SetNexuses(1)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1}})
	r.m.LoadIntents(lun1, Regions{1}) // hot, so that only the tests of bits meet a cold region
	r.m.Start(r.now)
	return r
}

// record of the members given; peers keep the incarnation that config gives them.
func record(epoch uint64, members ...Node) Record {
	rec := Record{Cluster: "c", Pair: "p", Epoch: epoch, Generation: 1}
	for _, n := range members {
		rec.Members = append(rec.Members, Member{Node: n, Store: "store-" + n.String(), Incarnation: inc("boot-"+n.String(), uint64(n)+1)})
	}
	return rec
}

func (r *rig) pull() {
	for r.m.Pending() {
		for _, x := range r.m.Take(nil) {
			switch x.Kind {
			case ActEvent:
				r.texts = append(r.texts, x.Text)
				if x.Damage != nil {
					r.harm = append(r.harm, x.Damage)
				}
			case ActALUA:
			default:
				r.queue = append(r.queue, x)
			}
		}
	}
}

// next takes the oldest action of a kind out of the queue.
func (r *rig) next(k ActionKind) Action {
	r.t.Helper()
	x, ok := r.poll(k)
	if !ok {
		r.t.Fatalf("no action of kind %d is due; queue: %s", k, r.dump())
	}
	return x
}

func (r *rig) poll(k ActionKind) (Action, bool) {
	r.pull()
	for i, x := range r.queue {
		if x.Kind == k {
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return x, true
		}
	}
	return Action{}, false
}

func (r *rig) none(k ActionKind) {
	r.t.Helper()
	if x, ok := r.poll(k); ok {
		r.t.Fatalf("unexpected action %+v", x)
	}
}

// sent takes the oldest message of a type that the machine sends.
func (r *rig) sent(ty MsgType) *Msg {
	r.t.Helper()
	if m := r.sentMaybe(ty); m != nil {
		return m
	}
	r.t.Fatalf("no message of type %d is sent; queue: %s", ty, r.dump())
	return nil
}

func (r *rig) sentMaybe(ty MsgType) *Msg {
	r.pull()
	for i, x := range r.queue {
		if x.Kind == ActSend && x.Msg.Type == ty {
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return x.Msg
		}
	}
	return nil
}

func (r *rig) notSent(ty MsgType) {
	r.t.Helper()
	if m := r.sentMaybe(ty); m != nil {
		r.t.Fatalf("unexpected message %+v", m)
	}
}

func (r *rig) dump() string {
	var s []string
	for _, x := range r.queue {
		b, _ := json.Marshal(struct {
			K ActionKind
			T MsgType
		}{x.Kind, func() MsgType {
			if x.Msg != nil {
				return x.Msg.Type
			}
			return 0
		}()})
		s = append(s, string(b))
	}
	return strings.Join(s, " ") + " phase " + r.m.phase.String() + " " + r.m.reason + "\n" + strings.Join(r.texts, "\n")
}

func (r *rig) pass(d int64) {
	for end := r.now + d; r.now < end; {
		r.now = min(r.now+10*ms, end)
		r.m.Tick(r.now)
		r.pull()
	}
}

func (r *rig) phase(p Phase) {
	r.t.Helper()
	if r.m.phase != p {
		r.t.Fatalf("phase %v (%s), want %v\n%s", r.m.phase, r.m.reason, p, strings.Join(r.texts, "\n"))
	}
}

func (r *rig) reason(part string) {
	r.t.Helper()
	if !strings.Contains(r.m.reason, part) {
		r.t.Fatalf("reason %q does not name %q", r.m.reason, part)
	}
}

// got answers the arbiter call under way with a record.
func (r *rig) got(rec Record, version string) {
	r.t.Helper()
	if _, ok := r.poll(ActArbiterGet); !ok {
		r.next(ActArbiterCAS)
	}
	r.m.ArbiterDone(r.now, Got, &rec, version, "")
}

func (r *rig) arbiter(out Outcome) {
	r.t.Helper()
	if _, ok := r.poll(ActArbiterGet); !ok {
		r.next(ActArbiterCAS)
	}
	r.m.ArbiterDone(r.now, out, nil, "", "down")
}

// cas takes the compare-and-swap that is due.
func (r *rig) cas() Action { r.t.Helper(); return r.next(ActArbiterCAS) }

func (r *rig) won(x Action, version string) {
	r.m.ArbiterDone(r.now, Got, x.Record, version, "")
}

func (r *rig) saved() {
	r.t.Helper()
	x := r.next(ActSaveEpoch)
	r.m.EpochSaved(r.now, x.Record.Epoch, true)
}

func (r *rig) recv(msg *Msg) {
	if msg.Epoch == 0 {
		msg.Epoch = r.m.rec.Epoch
	}
	r.m.Receive(r.now, r.m.link.number, msg)
	r.pull()
}

// peerInfo is the standing of the peer as config makes it.
func (r *rig) peerInfo(p Phase) SyncInfo {
	n := r.m.cfg.Self.Peer()
	return SyncInfo{Phase: p, Epoch: r.m.rec.Epoch, Durable: r.m.rec.Epoch, Incarnation: inc("boot-"+n.String(), uint64(n)+1),
		Store: "store-" + n.String(), Agreed: p == Paired, Lock: LockSame}
}

func (r *rig) sync(in SyncInfo) {
	r.syncs++
	meta, err := json.Marshal(in)
	if err != nil {
		r.t.Fatal(err)
	}
	r.recv(&Msg{Type: MsgSync, ID: r.syncs, Aux: int64(r.m.link.syncN), Meta: meta})
}

func (r *rig) linkUp() {
	r.m.LinkUp(r.now, r.m.link.number+1)
	r.pull()
}

// beat gives the machine a lease.
func (r *rig) beat() {
	r.t.Helper()
	for range 20 {
		if b := r.sentMaybe(MsgHeartbeat); b != nil {
			for x := b; x != nil; x = r.sentMaybe(MsgHeartbeat) {
				b = x
			}
			r.recv(&Msg{Type: MsgHeartbeatAck, ID: b.ID, Aux: b.Aux})
			if r.m.Serving(r.now) {
				return
			}
		}
		r.pass(10 * ms)
	}
	r.t.Fatalf("no lease: %s", r.dump())
}

// paired is a machine that serves as one of two members.
func paired(t *testing.T, self Node, change ...func(*Config)) *rig {
	t.Helper()
	cfg := config(self)
	cfg.DurableEpoch, cfg.Empty = 5, false
	for _, f := range change {
		f(&cfg)
	}
	r := newRig(t, cfg)
	r.got(record(5, A, B), "v5")
	r.phase(Paired)
	r.linkUp()
	r.sync(r.peerInfo(Paired))
	r.beat()
	r.queue = nil
	r.own(self)
	return r
}

// own settles the path of the test's host at this node.
func (r *rig) own(Node) {
	r.m.hosts.table[pathKey{lun1, testHost}] = map[scsi.NexusID]bool{{Initiator: testHost, Port: 1}: true}
}

// alone is a machine that serves as the only member.
func alone(t *testing.T, self Node) *rig {
	t.Helper()
	cfg := config(self)
	cfg.DurableEpoch, cfg.Empty = 6, false
	r := newRig(t, cfg)
	r.got(record(6, self), "v6")
	r.phase(Alone)
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	r.next(ActTakeAll)
	if self == B {
		r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
	}
	r.queue = nil
	return r
}

const testHost = "iqn.host"

func (r *rig) op(k scsi.OpKind, off int64, n int) *Op {
	s := &scsi.Op{Kind: k, Off: off, Len: int64(n), Arrived: r.now, Nexus: scsi.NexusID{Initiator: testHost, Port: 1}}
	if k == scsi.OpRead || k == scsi.OpWrite || k == scsi.OpCompareWrite {
		s.Data = make([]byte, n)
	}
	if k == scsi.OpCompareWrite {
		s.Verify = make([]byte, n)
	}
	o := &Op{Cmd: s, LUN: lun1}
	s.Medium = o
	return o
}

func (r *rig) submit(o *Op) *Op {
	r.m.Submit(r.now, o)
	r.pull()
	return o
}

// ended checks that an op came back with a result, once.
func (r *rig) ended(o *Op, want scsi.Result) {
	r.t.Helper()
	x, ok := r.poll(ActReply)
	if !ok {
		r.t.Fatalf("nothing is answered; stage %d, queue %s", o.stage, r.dump())
	}
	if x.Op != o || o.Cmd.Result != want {
		r.t.Fatalf("answered: same op %v, result %v, want %v", x.Op == o, o.Cmd.Result, want)
	}
}

func (r *rig) stored(res scsi.Result) Action {
	r.t.Helper()
	x := r.next(ActStore)
	r.m.StoreDone(r.now, x.Op, res)
	return x
}

func (r *rig) mirrorAck(m *Msg, res scsi.Result) {
	r.recv(&Msg{Type: MsgMirrorAck, ID: m.ID, Result: res})
}

// saveState makes the node's own state durable and tells what it is.
func (r *rig) saveState() State {
	r.t.Helper()
	x := r.next(ActSaveState)
	r.m.StateSaved(r.now, x.ID, true)
	return x.State
}
