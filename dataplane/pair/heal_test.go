package pair

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// keepsSums has both nodes keep checksums.
func keepsSums(t *testing.T, self Node) *rig {
	t.Helper()
	r := paired(t, self, func(c *Config) { c.Sums = true })
	in := r.peerInfo(Paired)
	in.Sums = true
	r.sync(in)
	r.queue = nil
	return r
}

// finds answers the oldest action of a kind: these blocks do not match.
func (r *rig) finds(k ActionKind, bad ...scsi.Range) *Op {
	r.t.Helper()
	o := r.next(k).Op
	o.Bad = slices.Clone(bad)
	r.m.StoreDone(r.now, o, scsi.Damaged)
	return o
}

// fetched answers what is asked for with bytes of the given value.
func (r *rig) fetched(req *Msg, v byte) {
	r.recv(&Msg{Type: MsgFetched, ID: req.ID, Data: bytes.Repeat([]byte{v}, int(req.Len))})
}

func (r *rig) refused(req *Msg, res scsi.Result) {
	r.recv(&Msg{Type: MsgFetched, ID: req.ID, Result: res})
}

// done answers the oldest action of a kind.
func (r *rig) done(k ActionKind, res scsi.Result) *Op {
	r.t.Helper()
	o := r.next(k).Op
	r.m.StoreDone(r.now, o, res)
	return o
}

func blocks(from, n int64) scsi.Range { return scsi.Range{Off: from * 512, Len: n * 512} }

// asks checks what the partner is asked for.
func (r *rig) asks(want scsi.Range) *Msg {
	r.t.Helper()
	req := r.sent(MsgFetch)
	if req.LUN != lun1 || req.Off != want.Off || req.Len != want.Len {
		r.t.Fatalf("asks for %d+%d, want %+v", req.Off, req.Len, want)
	}
	return req
}

// accepts checks what is to be taken as it is.
func (r *rig) accepts(res scsi.Result, want ...scsi.Range) {
	r.t.Helper()
	x := r.next(ActAccept)
	if !slices.Equal(x.Op.Bad, want) {
		r.t.Fatalf("%+v", x.Op.Bad)
	}
	r.m.StoreDone(r.now, x.Op, res)
}

// tells takes the next event of damaged blocks.
func (r *rig) tells(lost bool, runs ...scsi.Range) {
	r.t.Helper()
	r.pull()
	if len(r.harm) == 0 {
		r.t.Fatal("no event tells of damaged blocks")
	}
	if d := r.harm[0]; d.LUN != lun1 || d.Lost != lost || !slices.Equal(d.Runs, runs) {
		r.t.Fatalf("%+v, want lost %v, %+v", d, lost, runs)
	}
	r.harm = r.harm[1:]
}

// lostAt checks that a command ends in a read error at a place.
func (r *rig) lostAt(o *Op, at int64) {
	r.t.Helper()
	r.ended(o, scsi.ReadError)
	if !o.Cmd.Located || o.Cmd.BadAt != at || r.m.Stats.LostBlocks == 0 {
		r.t.Fatalf("located %v at %d, want %d", o.Cmd.Located, o.Cmd.BadAt, at)
	}
}

// The owner takes the range for itself before it asks: what came before is through, what comes
// after waits.
func TestDamagedReadIsHealed(t *testing.T) {
	r := keepsSums(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 4096))
	before := r.submit(r.op(scsi.OpWrite, 512, 512))
	r.notSent(MsgMirror)
	r.finds(ActStore, blocks(2, 1))
	r.notSent(MsgFetch) // the write was first
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.notSent(MsgFetch)
	r.stored(scsi.OK)
	r.ended(before, scsi.OK)
	req := r.asks(blocks(2, 1))
	if req.Seq != 1 {
		t.Fatalf("%+v", req)
	}
	after := r.submit(r.op(scsi.OpWrite, 2048, 512))
	reader := r.submit(r.op(scsi.OpRead, 0, 512))
	r.notSent(MsgMirror)
	r.none(ActStore)
	far := r.submit(r.op(scsi.OpRead, 4096, 512))
	r.stored(scsi.OK)
	r.ended(far, scsi.OK)
	r.fetched(req, 7)
	if h := r.done(ActHeal, scsi.OK); h != o || h.HealAt != 1024 {
		t.Fatalf("%+v", h)
	}
	r.tells(false, blocks(2, 1))
	r.none(ActReply) // it looks again
	r.notSent(MsgMirror)
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	for range 2 {
		r.stored(scsi.OK)
	}
	if r.m.Stats.Healed != 1 || r.m.Stats.LostBlocks != 0 || after.stage != stDone || reader.stage != stDone || r.m.units[lun1].locks.Len() != 0 {
		t.Fatalf("%+v", r.m.Stats)
	}
}

// What is written is what the partner sent, run by run and no more at once than healMax.
func TestHealingOfSeveralRuns(t *testing.T) {
	r := keepsSums(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 1<<20))
	long := scsi.Range{Off: 4096, Len: healMax + 512}
	r.finds(ActStore, blocks(1, 1), long)
	for i, want := range []scsi.Range{blocks(1, 1), {Off: 4096, Len: healMax}, {Off: 4096 + healMax, Len: 512}} {
		r.fetched(r.asks(want), byte(i+1))
		h := r.next(ActHeal).Op
		if h.HealAt != want.Off || int64(len(h.Heal)) != want.Len || h.Heal[0] != byte(i+1) {
			t.Fatalf("%d+%d", h.HealAt, len(h.Heal))
		}
		r.m.StoreDone(r.now, h, scsi.OK)
	}
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
}

// The partner reads in order with what it applies.
func TestPartnerFetchesInOrder(t *testing.T) {
	r := keepsSums(t, B)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Off: 512, Len: 512, Data: make([]byte, 512)})
	w := r.next(ActApply)
	r.recv(&Msg{Type: MsgFetch, Seq: 1, ID: 5, LUN: lun1, Len: 4096})
	r.none(ActFetch)
	r.recv(&Msg{Type: MsgFetch, Seq: 1, ID: 6, LUN: lun1, Off: 8192, Len: 512})
	far := r.next(ActFetch)
	r.m.Applied(r.now, r.m.link.number, w.Msg, scsi.OK)
	f := r.next(ActFetch)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 7, LUN: lun1, Off: 0, Len: 512, Data: make([]byte, 512)})
	r.none(ActApply)
	r.m.Fetched(r.now, r.m.link.number, f.Msg, []byte("copy"), scsi.OK)
	if a := r.sent(MsgFetched); a.ID != 5 || string(a.Data) != "copy" || a.Result != scsi.OK {
		t.Fatalf("%+v", a)
	}
	r.next(ActApply)
	r.m.Fetched(r.now, r.m.link.number, far.Msg, nil, scsi.Damaged)
	if a := r.sent(MsgFetched); a.ID != 6 || a.Result != scsi.Damaged {
		t.Fatalf("%+v", a)
	}
	// A snapshot is in no table of units, and nothing is applied to it.
	r.recv(&Msg{Type: MsgFetch, ID: 8, LUN: snap1, Len: 512})
	x := r.next(ActFetch)
	r.m.Fetched(r.now, r.m.link.number-1, x.Msg, nil, scsi.OK)
	r.notSent(MsgFetched) // the link on which it was asked is gone
	if r.m.applying != 1 {
		t.Fatalf("%d are applied", r.m.applying)
	}
}

func TestPartnerRefusesToFetch(t *testing.T) {
	for name, m := range map[string]Msg{"an older owner": {Seq: 0, Len: 512}, "another epoch": {Seq: 1, Len: 512, Epoch: 4}} {
		r := keepsSums(t, B)
		m.Type, m.ID, m.LUN = MsgFetch, 5, lun1
		r.recv(&m)
		r.none(ActFetch)
		if r.sentMaybe(MsgFetched) != nil || r.m.Stats.StaleMessages == 0 {
			t.Error(name)
		}
	}
	for name, m := range map[string]Msg{"nothing": {Seq: 1}, "too much": {Seq: 1, Len: maxForward + 1}, "before the beginning": {Seq: 1, Off: -512, Len: 512}} {
		r := keepsSums(t, B)
		m.Type, m.ID, m.LUN = MsgFetch, 5, lun1
		r.recv(&m)
		r.none(ActFetch)
		if a := r.sent(MsgFetched); a.Result != scsi.Failed {
			t.Errorf("%s: %+v", name, a)
		}
	}
	r := keepsSums(t, A) // it is the owner itself
	r.recv(&Msg{Type: MsgFetch, Seq: 1, ID: 5, LUN: lun1, Len: 512})
	r.none(ActFetch)
	r = keepsSums(t, B)
	r.m.exclude(r.now, "silent", false, 0)
	r.recv(&Msg{Type: MsgFetch, Seq: 1, ID: 5, LUN: lun1, Len: 512})
	r.none(ActFetch)
}

// The new owner may ask before the entry that made it the owner is applied here: it is answered.
// Dropped, it was not asked again, and the owner excluded its partner after Dm.
func TestFetchOvertakesTheTransfer(t *testing.T) {
	r := keepsSums(t, A)
	r.recv(&Msg{Type: MsgFetch, Seq: 2, ID: 5, LUN: lun1, Len: 512})
	r.m.Fetched(r.now, r.m.link.number, r.next(ActFetch).Msg, make([]byte, 512), scsi.OK)
	if a := r.sent(MsgFetched); a.ID != 5 || a.Result != scsi.OK {
		t.Errorf("%+v", a)
	}
}

// Damaged again and again after it has been healed: it is lost, and both the host here and the one
// at the other node learn where. Other blocks that are damaged meanwhile are healed as well.
func TestDamagedAgainIsLost(t *testing.T) {
	r := keepsSums(t, A)
	o := r.submit(r.op(scsi.OpRead, 512, 4096))
	for i := range healRounds {
		r.finds(ActStore, blocks(2+int64(i)%2, 1))
		r.fetched(r.asks(blocks(2+int64(i)%2, 1)), 1)
		r.done(ActHeal, scsi.OK)
	}
	r.finds(ActStore, blocks(3, 1))
	r.notSent(MsgFetch)
	r.lostAt(o, 1536)
	if s := strings.Join(r.texts, "\n"); !strings.Contains(s, "byte 1536, block 3") || !strings.Contains(s, "neither does the copy on node b") {
		t.Error(s)
	}

	r.recv(r.forward(10, r.op(scsi.OpRead, 512, 1024)))
	for range healRounds {
		r.finds(ActStore, scsi.Range{Off: 0, Len: 1024}) // begins before what is read
		r.fetched(r.asks(blocks(0, 2)), 1)
		r.done(ActHeal, scsi.OK)
	}
	r.finds(ActStore, blocks(0, 2))
	if x := r.sent(MsgForwardResult); x.Result != scsi.ReadError || x.Aux != 1 || x.Off != 512 || len(x.Data) != 0 {
		t.Fatalf("%+v", x)
	}

	f := paired(t, B)
	o = f.submit(f.op(scsi.OpRead, 512, 512))
	f.recv(&Msg{Type: MsgForwardResult, ID: f.sent(MsgForward).ID, Result: scsi.ReadError, Off: 512, Aux: 1})
	f.ended(o, scsi.ReadError)
	if !o.Cmd.Located || o.Cmd.BadAt != 512 {
		t.Fatalf("%+v", o.Cmd)
	}
	o = f.submit(f.op(scsi.OpRead, 512, 512))
	f.recv(&Msg{Type: MsgForwardResult, ID: f.sent(MsgForward).ID, Result: scsi.ReadError})
	f.ended(o, scsi.ReadError)
	if o.Cmd.Located {
		t.Fatal("a disk that cannot be read names no block")
	}
}

// The partner has no good copy: what lost its checksum only is taken, what is known to be another
// content is lost.
func TestNoGoodCopyAtThePartner(t *testing.T) {
	for name, answer := range map[string]func(*rig, *Msg){
		"damaged there":        func(r *rig, req *Msg) { r.refused(req, scsi.Damaged) },
		"it cannot be read":    func(r *rig, req *Msg) { r.refused(req, scsi.ReadError) },
		"no such object there": func(r *rig, req *Msg) { r.refused(req, scsi.Unavailable) },
		"too few bytes":        func(r *rig, req *Msg) { r.recv(&Msg{Type: MsgFetched, ID: req.ID, Data: make([]byte, 511)}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := keepsSums(t, A)
			o := r.submit(r.op(scsi.OpRead, 0, 4096))
			r.finds(ActStore, blocks(2, 1))
			answer(r, r.asks(blocks(2, 1)))
			r.none(ActHeal)
			r.accepts(scsi.OK, blocks(2, 1))
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
			o = r.submit(r.op(scsi.OpRead, 0, 4096))
			r.finds(ActStore, blocks(2, 1))
			answer(r, r.asks(blocks(2, 1)))
			r.accepts(scsi.Damaged, blocks(2, 1))
			r.finds(ActStore, blocks(2, 1))
			r.notSent(MsgFetch)
			r.lostAt(o, 1024)
		})
	}
}

// One block of a run is lost at both nodes: the others are healed, and it is named.
func TestOneBlockOfARunIsLost(t *testing.T) {
	r := keepsSums(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 8192))
	r.finds(ActStore, blocks(0, 5), blocks(8, 1))
	lost := blocks(3, 1)
	for healed := int64(0); ; {
		req := r.sent(MsgFetch)
		if req.Off <= lost.Off && req.Off+req.Len > lost.Off {
			r.refused(req, scsi.Damaged)
			if req.Len == 512 {
				if healed != 3 {
					t.Fatalf("%d blocks before it are healed", healed)
				}
				break
			}
			continue
		}
		r.fetched(req, 1)
		r.done(ActHeal, scsi.OK)
		healed += req.Len / 512
	}
	r.accepts(scsi.Damaged, lost)
	r.finds(ActStore, lost, blocks(4, 1), blocks(8, 1))
	r.lostAt(o, lost.Off)
	r.tells(false, blocks(0, 3))
	r.tells(true, lost) // the others were not asked for
	if len(r.harm) != 0 {
		t.Fatalf("%+v", r.harm[0])
	}
}

// What the partner has is healed also where it lacks another block, which has lost its checksum
// here only.
func TestOneBlockIsTakenAndOthersHealed(t *testing.T) {
	r := keepsSums(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 8192))
	r.finds(ActStore, blocks(1, 1), blocks(8, 1))
	r.refused(r.asks(blocks(1, 1)), scsi.Damaged)
	r.accepts(scsi.OK, blocks(1, 1))
	r.finds(ActStore, blocks(8, 1))
	r.fetched(r.asks(blocks(8, 1)), 1)
	r.done(ActHeal, scsi.OK)
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
}

// Alone, and of a partner that keeps no checksums, nothing is asked. Where it is lost the second
// look says.
func TestNobodyToAsk(t *testing.T) {
	for name, make := range map[string]func(*testing.T) *rig{
		"alone":                   func(t *testing.T) *rig { return alone(t, A) },
		"without sums over there": func(t *testing.T) *rig { return paired(t, A) },
	} {
		t.Run(name, func(t *testing.T) {
			r := make(t)
			o := r.submit(r.op(scsi.OpRead, 0, 4096))
			r.finds(ActStore, blocks(1, 1), blocks(4, 2))
			r.notSent(MsgFetch)
			r.accepts(scsi.OK, blocks(1, 1), blocks(4, 2))
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
			o = r.submit(r.op(scsi.OpRead, 0, 4096))
			r.finds(ActStore, blocks(1, 1), blocks(4, 2))
			r.accepts(scsi.Damaged, blocks(1, 1), blocks(4, 2))
			if r.m.phase == Alone {
				r.finds(ActStore, blocks(5, 1)) // the others had lost their checksums only
				r.lostAt(o, 2560)
				r.tells(true, blocks(5, 1))
			}
		})
	}
}
