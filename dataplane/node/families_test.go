package node

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

func TestFamilyOf(t *testing.T) {
	s := &meta.State{LUNs: map[string]*meta.LUN{"lun": {}, "clone": {SourceSnapshot: "snap"}, "copy": {SourceLUN: "clone"}, "orphan": {SourceSnapshot: "gone"},
		"round": {SourceLUN: "about"}, "about": {SourceLUN: "round"}},
		Snapshots: map[string]*meta.Snapshot{"snap": {Source: "lun"}, "late": {Source: "copy"}}}
	for id, want := range map[string]string{"lun": "lun", "snap": "lun", "clone": "lun", "copy": "lun", "late": "lun", "orphan": "gone"} {
		if got := familyOf(s, id); got != want {
			t.Errorf("%s is of the family %s, want %s", id, got, want)
		}
	}
	familyOf(s, "round") // it ends
}

// What a LUN and its copies share is shared again where a drain has moved it.
func TestDrainKeepsSharing(t *testing.T) {
	if err := slowdisk.Available(); err != nil {
		t.Skip("skipped: no disks here: ", err)
	}
	p := newTestPair(t).pooled("x", "y")
	d, err := slowdisk.Start(p.ctx, slowdisk.Options{Dir: filepath.Join(t.TempDir(), "disk"), Size: slowdisk.MinSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	p.cfg[0].BackingVolumes = []string{"pool/x=" + filepath.Join(d.Mount, "x"), "pool/y=" + filepath.Join(d.Mount, "y")}
	p.startBoth()
	t.Cleanup(func() {
		if err := p.stop(0); err != nil { // before the disk
			t.Error(err)
		}
	})
	id, m := p.lunIn(0, "pool")
	dev := p.device(m)
	for at := int64(0); at < 16*mib; at += mib {
		if _, err := dev.WriteAt(p.ctx, bytes.Repeat([]byte{byte(1 + at/mib)}, mib), at); err != nil {
			t.Fatal(err)
		}
	}
	c := p.client(0)
	snap, clone := uuid.NewString(), uuid.NewString()
	if _, err := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: clone, Name: "clone", SizeBytes: 16 * mib, SourceSnapshotUuid: snap}); err != nil {
		t.Fatal(err)
	}
	p.write(dev, 0, 99)
	v, err := p.nodes[0].store.Volume("pool")
	if err != nil {
		t.Fatal(err)
	}
	look := func(open func(string) (*store.File, error), id string) (text string) {
		f, err := open(id)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for e := range f.ExtentCount() {
			_, shared, err := f.Extent(e)
			text += fmt.Sprintf(" %d:%d %v %v", e, f.Where(e), shared, err)
		}
		return text
	}
	places := v.Places()
	x, y := places[0].Number, places[1].Number
	before := fmt.Sprintf(" 0:%d true <nil> 1:%d true <nil> 2:%d true <nil> 3:%d true <nil>", x, y, x, y)
	after := fmt.Sprintf(" 0:%d true <nil> 1:%d true <nil> 2:%d true <nil> 3:%d true <nil>", y, y, y, y)
	p.until("the copies are made", func() bool { return look(v.OpenSnapshot, snap) == before && look(v.OpenLUN, clone) == before })
	if _, err := c.DrainMember(p.ctx, &targetv1.DrainMemberRequest{Volume: "pool", Member: "x"}); err != nil {
		t.Fatal(err)
	}
	p.until("nothing is left in x", func() bool { return p.nodes[0].Status(p.ctx).Places[0].ExtentsLeft == 0 })
	if s, l := look(v.OpenSnapshot, snap), look(v.OpenLUN, clone); s != after || l != after {
		t.Errorf("the snapshot%s, the clone%s, want%s", s, l, after)
	}
	for _, id := range []string{id, snap, clone} {
		p.alikeInPool(id)
	}
}
