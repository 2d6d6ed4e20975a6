package node

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/target/pair"
)

// damages are what becomes of a file while its node is stopped.
var damages = map[string]func(path string) error{
	"truncated": func(path string) error { return os.Truncate(path, 5*mib) },
	"emptied":   func(path string) error { return os.Truncate(path, 0) },
	"missing":   os.Remove,
}

// What is gone from a file while its node is stopped is copied from the peer, though no bit says that it differs.
func TestMisfitIsCopied(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t).startBoth()
			id, m := p.lun(16*mib, "b")
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
			if r := p.nodes[0].View().Resync; !r.Full {
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

// A node with a misfit never is the source, whichever node was there first.
func TestMisfitIsNoSource(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(16*mib, "a")
	d := p.device(m)
	p.write(d, 15*mib, 3)
	p.clean()
	p.end(0)
	p.end(1)
	p.shorten(id)
	p.start(1) // the last one that served
	p.until("b says what the matter is", func() bool {
		v := p.nodes[1].View()
		return v.Phase == pair.Outside && strings.Contains(v.Reason, "has 5242880 bytes, and the LUN 16777216")
	})
	p.end(1)
	// The file is put back.
	if err := os.Rename(p.image(1, id)+".away", p.image(1, id)); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.until("b serves", func() bool { return p.nodes[1].View().Phase == pair.Alone && p.nodes[1].View().Serving })
	buf := make([]byte, 512)
	if _, err := d.ReadAt(p.ctx, buf, 15*mib); err != nil || buf[0] != 3 {
		t.Fatalf("%v: %d", err, buf[0])
	}
}

// shorten puts the file of a LUN of the stopped node b away, and a truncated one in its place.
func (p *testPair) shorten(id string) {
	p.t.Helper()
	image := p.image(1, id)
	if err := os.WriteFile(image+".away", p.bytes(1, id), 0o600); err != nil {
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

// A file of the right length that is another LUN's of the same uuid is noticed, although no checksums are kept that could tell.
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
	if r := p.nodes[0].View().Resync; !r.Full || !strings.Contains(log.String(), "another LUN's of that uuid") {
		t.Errorf("%+v %s", r, log)
	}
	p.alike(id)
	if got := p.bornAt(p.image(1, id)); got != born || p.bytes(1, id)[0] != 0 {
		t.Errorf("born at %s, not %s", got, born)
	}
	p.counterpart()
}
