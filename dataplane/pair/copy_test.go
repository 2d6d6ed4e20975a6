package pair

import (
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// source is a lone member with some regions hot, and a joiner whose store is the counterpart of its
// bits.
func source(t *testing.T) (*rig, SyncInfo) {
	t.Helper()
	r := alone(t, A)
	r.m.saved.state.Check = Checkpoint{Peer: "store-b", Generation: 1, Count: [2]uint64{4, 2}}
	n := r.cold()
	n.hot.AddAll(1, 2)
	in := r.joiner()
	in.Check = Checkpoint{Peer: "store-a", Generation: 1, Count: [2]uint64{4, 2}}
	return r, in
}

// join plays the handshake up to the first range; dirty are the joiner's bits.
func (r *rig) join(in SyncInfo, dirty ...int) {
	r.t.Helper()
	if !r.m.link.up {
		r.linkUp()
	}
	r.pass(lease)
	r.sync(in)
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, []byte("all"), nil, []CopyObject{{lun1, 64 * region, 1}})
	var set Regions
	for _, i := range dirty {
		set.Add(i)
	}
	r.recv(&Msg{Type: MsgDirty, LUN: lun1, Meta: set.Encode()})
	r.recv(&Msg{Type: MsgMetaAck})
}

// copies answers up to limit ranges, as equal, and lists the regions they were of.
func (r *rig) copies(limit int) (regions []int64) {
	r.t.Helper()
	for len(regions) < limit*region/copyChunk {
		x, ok := r.poll(ActCopyRead)
		if !ok {
			break
		}
		x.Op.Sum, x.Op.Buf = []byte("sum"), make([]byte, x.Op.Cmd.Len)
		r.m.StoreDone(r.now, x.Op, scsi.OK)
		regions = append(regions, x.Op.Cmd.Off/region)
		if d := r.sentMaybe(MsgCopyData); d != nil { // blind: R12
			r.recv(&Msg{Type: MsgCopyAck, ID: d.ID})
			continue
		}
		r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
	}
	return slices.Compact(regions)
}

// R7: what is compared is the union of both nodes' bits.
func TestResyncOfBothNodesBits(t *testing.T) {
	r, in := source(t)
	r.join(in, 5, 63)
	if got := r.copies(64); !slices.Equal(got, []int64{1, 2, 5, 63}) {
		t.Fatalf("%v", got)
	}
	if v := r.m.View(r.now).Resync; v.Full || v.Total != 4*region || v.Done != v.Total {
		t.Fatalf("%+v", v)
	}
	r.next(ActResyncList)
	r.m.ResyncObjects(r.now, []CopyObject{{lun1, 64 * region, 1}, {LUNID{7}, region, 9}}) // one was made meanwhile
	if got := r.copies(1); len(got) != 1 {
		t.Fatalf("%v", got)
	}
}

// R6: a store that is not known to be the counterpart of our bits is copied whole.
func TestFullResync(t *testing.T) {
	for want, f := range map[string]func(*rig, *SyncInfo){
		"had failed":                   func(_ *rig, in *SyncInfo) { in.Untrusted = true },
		"rolled back":                  func(_ *rig, in *SyncInfo) { in.Check.Count[A] = 3 },
		"rolled back ":                 func(_ *rig, in *SyncInfo) { in.Check.Count[B] = 0 },
		"rolled back  ":                func(r *rig, in *SyncInfo) { r.m.saved.state.Check.Settled, in.Check.Count[B] = 2, 1 },
		"data generation":              func(_ *rig, in *SyncInfo) { in.Check.Generation = 0 },
		"data generation ":             func(r *rig, _ *SyncInfo) { r.m.saved.state.Check.Generation = 0 },
		"counterpart of another":       func(_ *rig, in *SyncInfo) { in.Check.Peer = "store-x" },
		"not this store's counterpart": func(_ *rig, in *SyncInfo) { in.Store = "store-x" },
	} {
		t.Run(want, func(t *testing.T) {
			r, in := source(t)
			f(r, &in)
			r.join(in)
			if v := r.m.View(r.now).Resync; !v.Full || !strings.Contains(v.FullReason, strings.TrimSpace(want)) || v.Total != 64*region {
				t.Fatalf("%+v", v)
			}
		})
	}
	// The follower of a checkpoint may be one ahead.
	for _, f := range []func(*rig, *SyncInfo){
		func(_ *rig, in *SyncInfo) { in.Check.Count[A] = 5 },
		func(_ *rig, in *SyncInfo) { in.Check.Count[B] = 1 },
	} {
		r, in := source(t)
		f(r, &in)
		r.join(in)
		if v := r.m.View(r.now).Resync; v.Full {
			t.Fatalf("%+v", v)
		}
	}
}

// R6: a record that takes this store in again says that the source had the copy's number durable,
// whichever process of this node reads it first. A source that lacks the number then was put back,
// by however little.
func TestReadmissionSettlesTheCopy(t *testing.T) {
	for name, nonce := range map[string]uint64{"the joiner": 1, "its next process": 9} {
		cfg := config(A)
		cfg.DurableEpoch, cfg.Empty, cfg.Incarnation.Nonce = 4, false, nonce
		cfg.State.Check = Checkpoint{Peer: "store-b", Generation: 1, Count: [2]uint64{5, 9}, Settled: 8}
		r := newRig(t, cfg)
		r.got(record(5, B, A), "v5")
		x := r.next(ActSaveEpoch)
		if x.State.Check.Settled != 9 {
			t.Errorf("%s: %+v", name, x.State.Check)
		}
		r.m.EpochSaved(r.now, 5, true)
		r.m.link.peer.Store, r.m.link.peer.Check = "store-b", Checkpoint{Peer: "store-a", Generation: 1, Count: [2]uint64{5, 8}, Settled: 5}
		if r.m.fullReason() == "" {
			t.Errorf("%s: the source of before the copy is taken for whole", name)
		}
	}
	// A record that names another store of this node says nothing of this one.
	cfg := config(A)
	cfg.Store, cfg.State.Check = "store-x", Checkpoint{Peer: "store-b", Generation: 1, Count: [2]uint64{5, 9}, Settled: 8}
	r := newRig(t, cfg)
	r.got(record(5, B, A), "v5")
	if x := r.next(ActSaveEpoch); x.State.Check.Settled != 8 {
		t.Errorf("another store: %+v", x.State.Check)
	}
}

// R6: the only member's store was put back to an older state; it must not be copied over the
// younger one.
func TestRolledBackSourceCopiesNothing(t *testing.T) {
	for _, c := range []Checkpoint{{Count: [2]uint64{6, 2}}, {Count: [2]uint64{4, 3}}, {Count: [2]uint64{5, 2}, Settled: 5}} {
		r, in := source(t)
		in.Check.Count, in.Check.Settled = c.Count, c.Settled
		r.linkUp()
		r.sync(in)
		r.none(ActExport)
		r.reason("an older copy of itself")
	}
}

// A resync continues where it stopped when the same process comes back, on a store that has not
// failed; what was written meanwhile joins it.
func TestResyncGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		again func(*SyncInfo)
		want  []int64
	}{
		"the same process":             {func(*SyncInfo) {}, []int64{2, 9}},
		"the next one":                 {func(in *SyncInfo) { in.Incarnation.Nonce = 100 }, []int64{1, 2, 9}},
		"the next one, rebooted":       {func(in *SyncInfo) { in.Incarnation = inc("boot", 100) }, []int64{1, 2, 9}},
		"on a store that failed since": {func(in *SyncInfo) { in.Untrusted = true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, in := source(t)
			r.join(in)
			if got := r.copies(1); !slices.Equal(got, []int64{1}) {
				t.Fatalf("%v", got)
			}
			r.m.LinkDown(r.now, r.m.link.number, false)
			for x, ok := r.poll(ActCopyRead); ok; x, ok = r.poll(ActCopyRead) {
				r.m.StoreDone(r.now, x.Op, scsi.OK)
			}
			w := r.submit(r.op(scsi.OpWrite, 9*region, 512))
			r.intended()
			r.stored(scsi.OK)
			r.ended(w, scsi.OK)
			r.queue = nil
			c.again(&in)
			r.join(in)
			got := r.copies(64)
			if c.want == nil && len(got) != 64 || c.want != nil && !slices.Equal(got, c.want) {
				t.Fatalf("%v", got)
			}
		})
	}
}

// A write that was mirrored and not answered when the link broke is copied again: the joiner may
// have it or not.
func TestResyncGoesOnWithUnansweredWrites(t *testing.T) {
	r, in := source(t)
	r.join(in)
	r.copies(64)
	w := r.submit(r.op(scsi.OpWrite, 33*region, 512))
	r.sent(MsgMirror)
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.intended()
	r.stored(scsi.OK)
	r.ended(w, scsi.OK)
	r.queue = nil
	r.join(in)
	if got := r.copies(64); !slices.Equal(got, []int64{33}) {
		t.Fatalf("%v", got)
	}
}

// R10: a transfer that began while both were members may give a LUN away while its new owner is
// being copied to. Nobody but the source may own one when the pair is whole again.
func TestNoReadmissionWithALUNGivenAway(t *testing.T) {
	r, in := source(t)
	r.join(in)
	r.copies(64)
	r.next(ActResyncList)
	r.m.ResyncObjects(r.now, []CopyObject{{lun1, 64 * region, 1}})
	f := r.sent(MsgFlushAll)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 9, Size: 64 * region}})
	r.recv(&Msg{Type: MsgFlushAllAck, ID: f.ID, Aux: int64(r.m.log.index)})
	r.none(ActSaveState)
	if v := r.m.View(r.now).Resync; v.Active {
		t.Fatalf("%+v", v)
	}
	r.pass(2 * lease)
	r.m.link.up = false
	r.linkUp()
	r.sync(in)
	r.pass(lease)
	r.next(ActTakeAll)
}

// A range whose LUN is held for long, for a snapshot that is a full copy, is copied when the hold
// has ended: until then the joiner is not whole.
func TestResyncWaitsForAHold(t *testing.T) {
	r, in := source(t)
	r.m.Quiesce(r.now, 5, []LUNID{lun1}, 60_000*ms)
	if x := r.next(ActQuiet); x.Result != scsi.OK {
		t.Fatalf("%+v", x)
	}
	r.join(in)
	r.none(ActCopyRead)
	r.pass(8000 * ms)
	r.notSent(MsgFlushAll)
	r.none(ActCopyRead)
	r.m.Release(r.now, 5)
	if got := r.copies(64); !slices.Equal(got, []int64{1, 2}) {
		t.Fatalf("%v", got)
	}
}

// While hosts are at work one range is under way, else some.
func TestResyncYieldsToHosts(t *testing.T) {
	r, in := source(t)
	r.join(in)
	if n := r.m.resync.inflight; n != copyWindow {
		t.Fatal(n)
	}
	r, in = source(t)
	r.linkUp()
	r.sync(in)
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, nil, nil, []CopyObject{{lun1, 64 * region, 1}})
	r.submit(r.op(scsi.OpRead, 40*region, 512))
	r.recv(&Msg{Type: MsgMetaAck})
	if n := r.m.resync.inflight; n != 1 {
		t.Fatal(n)
	}
}

func TestDirtyThatCannotBeRead(t *testing.T) {
	r, in := source(t)
	r.linkUp()
	r.sync(in)
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, nil, nil, []CopyObject{{lun1, 64 * region, 1}})
	r.recv(&Msg{Type: MsgDirty, LUN: lun1, Meta: []byte("torn")})
	r.next(ActDropLink)
}

// What was made again has other bits on disk than what was there before under the same id.
func TestInstalledAnewIsCold(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty = 5, false
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	r.saved()
	r.linkUp()
	r.sync(r.peerInfo(Alone))
	units := []UnitInfo{{ID: lun1, Owner: A, Seq: 1, Size: region}}
	for _, full := range [][]LUNID{nil, {lun1}} {
		r.recv(&Msg{Type: MsgMetaInstall, Aux: 3, Meta: []byte("all")})
		r.next(ActInstall)
		r.m.Installed(r.now, r.m.link.number, 3, units, full, scsi.OK)
		dirty := r.sentMaybe(MsgDirty) != nil
		ack := r.sent(MsgMetaAck)
		if ids, err := decodeIDs(ack.Meta); err != nil || len(ids) != len(full) || dirty != (full == nil) {
			t.Fatalf("%v %v, bits sent: %v", ids, err, dirty)
		}
		if hot := r.m.units[lun1].intents.hot.Has(0); hot != (full == nil) {
			t.Fatalf("hot: %v", hot)
		}
	}
}

// The link breaks while the metadata are being installed: they are here nevertheless, and with them
// their index.
func TestInstalledAfterTheLinkBroke(t *testing.T) {
	r := excluded(t)
	r.linkUp()
	r.sync(r.peerInfo(Alone))
	r.recv(&Msg{Type: MsgMetaInstall, Aux: 3, Meta: []byte("all")})
	r.next(ActInstall)
	link := r.m.link.number
	r.m.LinkDown(r.now, link, false)
	if err := r.m.Force(r.now, r.m.View(r.now).ForceEpoch); err != nil {
		t.Fatal(err)
	}
	r.none(ActFlushAll) // what is here is not known yet
	r.m.Installed(r.now, link, 3, []UnitInfo{{ID: lun1, Owner: A, Seq: 4}}, nil, scsi.OK)
	r.notSent(MsgMetaAck)
	if v := r.m.View(r.now); v.LogIndex != 3 {
		t.Fatal(v.LogIndex)
	}
	r.pass(20 * ms)
	r.next(ActFlushAll)
}
