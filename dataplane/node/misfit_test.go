package node

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/initiator"
)

// damages are what becomes of a file while its node is stopped.
var damages = map[string]func(path string) error{
	"truncated": func(path string) error { return os.Truncate(path, 5*mib) },
	"emptied":   func(path string) error { return os.Truncate(path, 0) },
	"missing":   os.Remove,
}

// What is gone from a file while its node is stopped is copied from the peer, though no bit says
// that it differs; other LUNs are not.
func TestMisfitIsCopied(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t).startBoth()
			id, m := p.lun(16*mib, "b")
			p.lun(32*mib, "b")
			d := p.device(m)
			for off := int64(0); off < 16*mib; off += mib {
				p.write(d, off, byte(off/mib)+1)
			}
			p.clean()
			p.end(1)
			if err := damage(p.image(1, id)); err != nil {
				t.Fatal(err)
			}
			p.start(1)
			p.inSync()
			if r := p.nodes[0].View().Resync; r.Full || r.Total != 16*mib {
				t.Fatalf("%+v", r)
			}
			p.alike(id)
			if _, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"}); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, mib)
			if _, err := d.ReadAt(p.ctx, buf, 15*mib); err != nil || buf[0] != 16 {
				t.Fatalf("%v: %d", err, buf[0])
			}
			p.counterpart()
		})
	}
}

// Snapshots are judged as LUNs are.
func TestMisfitSnapshotIsCopied(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t).startBoth()
			id, m := p.lun(16*mib, "a")
			p.write(p.device(m), 0, 1)
			snap := uuid.NewString()
			if _, err := p.client(0).CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: id}); err != nil {
				t.Fatal(err)
			}
			p.clean()
			p.end(1)
			if err := damage(p.object(1, "snapshots", snap)); err != nil {
				t.Fatal(err)
			}
			p.start(1)
			p.inSync()
			if !bytes.Equal(p.read(p.object(0, "snapshots", snap)), p.read(p.object(1, "snapshots", snap))) {
				t.Fatal("the copies differ")
			}
		})
	}
}

// A lone member with a misfit serves its other LUNs. It does not copy what is missing over what the
// peer may have; no snapshot, clone or greater size of that LUN is made; and both go on once the
// file is put back, or the LUN is deleted.
func TestLoneMemberWithAMisfit(t *testing.T) {
	for _, remedy := range []string{"put back", "deleted"} {
		t.Run(remedy, func(t *testing.T) {
			p := newTestPair(t).startBoth()
			id, m := p.lun(16*mib, "b")
			other, m2 := p.lun(16*mib, "b")
			p.write(p.device(m), 15*mib, 3)
			p.write(p.device(m2), 0, 4)
			p.clean()
			p.end(0)
			p.write(p.device(m), 0, 5) // a has another content
			p.end(1)
			p.shorten(1, id)
			p.start(1)
			p.until("b serves", func() bool { return p.nodes[1].View().Phase == pair.Alone && p.nodes[1].View().Serving })
			p.start(0)
			p.until("b says why it does not copy", func() bool {
				return strings.Contains(p.nodes[1].View().Reason, "has 5242880 bytes, but the LUN has 16777216 bytes") && p.nodes[1].View().Linked
			})
			buf := make([]byte, 512)
			if _, err := p.device(m).ReadAt(p.ctx, buf, 0); !errors.Is(err, initiator.ErrMedium) {
				t.Errorf("a read of the misfit: %v", err)
			}
			if _, err := p.device(m2).ReadAt(p.ctx, buf, 0); err != nil || buf[0] != 4 {
				t.Errorf("the other LUN: %v, %d", err, buf[0])
			}
			c := p.client(1)
			_, snap := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: uuid.NewString(), Name: "s", SourceLunUuid: id})
			_, clone := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "c", SizeBytes: 16 * mib, SourceLunUuid: id})
			_, grown := c.ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: 32 * mib})
			for what, err := range map[string]error{"snapshot": snap, "clone": clone, "expansion": grown} {
				if err == nil || !strings.Contains(err.Error(), "has 5242880 bytes, but the LUN has 16777216 bytes") {
					t.Errorf("%s: %v", what, err)
				}
			}
			if b := p.bytes(0, id); b[15*mib] != 3 {
				t.Fatal("what was missing has been copied")
			}
			if remedy == "deleted" {
				if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
					t.Fatal(err)
				}
				if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id}); err != nil {
					t.Fatal(err)
				}
			} else {
				p.end(1)
				if err := os.Rename(p.image(1, id)+".away", p.image(1, id)); err != nil {
					t.Fatal(err)
				}
				p.start(1)
			}
			p.inSync()
			if r := p.nodes[1].View().Resync; r.Full {
				t.Errorf("%+v", r)
			}
			p.alike(other)
			if remedy == "put back" {
				p.alike(id)
				for off, want := range map[int64]byte{0: 5, 15 * mib: 3} {
					if _, err := p.device(m).ReadAt(p.ctx, buf, off); err != nil || buf[0] != want {
						t.Errorf("%v: %d at %d", err, buf[0], off)
					}
				}
			}
		})
	}
}

// shorten puts the file of a LUN of a stopped node away, and a truncated one in its place.
func (p *testPair) shorten(node int, id string) {
	p.t.Helper()
	image := p.image(node, id)
	if err := os.WriteFile(image+".away", p.bytes(node, id), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Truncate(image, 5*mib); err != nil {
		p.t.Fatal(err)
	}
}

// A node that a person has forced serves nothing of a misfit, and all of its other LUNs.
func TestMisfitIsFenced(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t).startBoth()
			bad, _ := p.lun(16*mib, "a")
			good, m := p.lun(16*mib, "a")
			p.write(p.device(m), 0, 1)
			p.clean()
			p.end(1)
			p.end(0)
			if err := damage(p.image(1, bad)); err != nil {
				t.Fatal(err)
			}
			p.start(1)
			c := p.client(1)
			p.until("b waits", func() bool { return p.nodes[1].View().ForceEpoch != 0 })
			if _, err := c.Force(p.ctx, &targetv1.ForceRequest{Epoch: p.nodes[1].View().ForceEpoch, AcceptDataLoss: true}); err != nil {
				t.Fatal(err)
			}
			p.until("b serves", func() bool { return p.nodes[1].View().Phase == pair.Alone && p.nodes[1].View().Serving })
			open := func(id string) *initiator.Device {
				if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
					t.Fatal(err)
				}
				m, err := c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost})
				if err != nil {
					t.Fatal(err)
				}
				return p.device(m)
			}
			buf := make([]byte, 512)
			d := open(bad)
			for off := int64(0); off < 16*mib; off += 4 * mib {
				if _, err := d.ReadAt(p.ctx, buf, off); !errors.Is(err, initiator.ErrMedium) {
					t.Errorf("a read at %d: %v", off, err)
				}
				if _, err := d.WriteAt(p.ctx, buf, off); !errors.Is(err, initiator.ErrMedium) {
					t.Errorf("a write at %d: %v", off, err)
				}
			}
			if _, err := open(good).ReadAt(p.ctx, buf, 0); err != nil || buf[0] != 1 {
				t.Errorf("another LUN: %v, %d", err, buf[0])
			}
		})
	}
}

// A file of the right length that is another LUN's of the same uuid is noticed, although no
// checksums are kept that could tell.
func TestMisfitByBirthIsCopied(t *testing.T) {
	p := newTestPair(t)
	p.cfg[0].NoChecksums, p.cfg[1].NoChecksums = true, true
	log := p.keepLog(1)
	p.startBoth()
	id, m := p.lun(4*mib, "a")
	p.write(p.device(m), 0, 1)
	older := p.image(1, id) + ".older"
	p.clean()
	p.end(1)
	if err := os.Link(p.image(1, id), older); err != nil { // a copy that keeps what the file has
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	p.deleteLUN(id)
	if err := p.makeLUN(id, 4*mib); err != nil {
		t.Fatal(err)
	}
	mapped, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost})
	if err != nil {
		t.Fatal(err)
	}
	p.write(p.device(mapped), mib, 2)
	p.clean()
	p.end(1)
	born := p.bornAt(p.image(1, id))
	if err := os.Rename(older, p.image(1, id)); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	if r := p.nodes[0].View().Resync; r.Full || r.Sent == 0 || !strings.Contains(log.String(), "another LUN with this uuid") {
		t.Errorf("%+v %s", r, log)
	}
	p.alike(id)
	if got := p.bornAt(p.image(1, id)); got != born || p.bytes(1, id)[0] != 0 {
		t.Errorf("born at %s, not %s", got, born)
	}
	p.counterpart()
}
