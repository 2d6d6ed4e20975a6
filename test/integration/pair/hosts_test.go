package pair

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

const host2 = "iqn.2026-11.storage.gemel.test:host2"

// Two hosts use one LUN while it moves back and forth.
func TestSecondHostDuringTransfers(t *testing.T) {
	p, ctx := start(t)
	lun, m := createLUN(t, ctx, p, 32<<20, "a")
	m2, err := p.Client(1).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: lun.Uuid, HostIqn: host2})
	if err != nil {
		t.Fatal(err)
	}
	d1, d2 := open(t, ctx, m), open(t, ctx, m2)
	l := startLoad(ctx, d1, 4, 1024)
	l2 := startLoad(ctx, offset{d2, 16 << 20}, 4, 1024)
	for i := range 10 {
		l.more(t, ctx, 100)
		l2.more(t, ctx, 100)
		to := harness.Names[(i+1)%2]
		if _, err := p.Client(i%2).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: to}); err != nil {
			t.Fatal(err)
		}
		if s, err := p.Client(i%2).GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: lun.Uuid}); err != nil || s.Owner != to {
			t.Fatalf("owner %v, want %s, %v", s, to, err)
		}
	}
	l.more(t, ctx, 100)
	t.Logf("ten transfers: longest write %v and %v", l.pauseSince(), l2.pauseSince())
	close(l.stop)
	close(l2.stop)
	l.wg.Wait()
	l2.wg.Wait()
	l.verify(t, ctx, d2) // each reads what the other wrote
	l2.verify(t, ctx, offset{d1, 16 << 20})
}

func TestSnapshotAndClone(t *testing.T) {
	p, ctx, l, lun, m := loaded(t, "a")
	frozen := pattern(1<<20, 42)
	if _, err := l.d.WriteAt(ctx, frozen, 16<<20); err != nil {
		t.Fatal(err)
	}
	snap, clone := uuid.NewString(), uuid.NewString()
	if _, err := p.Client(1).CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: lun.Uuid}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.d.WriteAt(ctx, pattern(1<<20, 43), 16<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Client(0).CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: clone, Name: "clone", SizeBytes: 64 << 20, SourceSnapshotUuid: snap, PreferredNode: "b"}); err != nil {
		t.Fatal(err)
	}
	mc, err := p.Client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: clone, HostIqn: host})
	if err != nil {
		t.Fatal(err)
	}
	if mc.Lun == m.Lun || mc.Wwid == m.Wwid {
		t.Fatalf("the clone is shown as its source: %v", mc)
	}
	dc := open(t, ctx, mc)
	got := make([]byte, len(frozen))
	if _, err := dc.ReadAt(ctx, got, 16<<20); err != nil || !bytes.Equal(got, frozen) {
		t.Fatalf("the clone does not hold what the snapshot froze: %v", err)
	}
	if dc.Size() != 64<<20 {
		t.Fatalf("size %d", dc.Size())
	}
	if _, err := dc.WriteAt(ctx, pattern(1<<20, 44), 48<<20); err != nil {
		t.Fatal(err)
	}
	closeDevice(dc)
	finish(t, ctx, p, l, lun, m) // under load all the while: the source's copies are alike
	alike(t, p, clone)
	var images [2][]byte
	for i := range images {
		if images[i], err = os.ReadFile(filepath.Join(p.State[i], "volumes", "default", "snapshots", snap+".img")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(images[0], images[1]) {
		t.Fatal("the snapshot's copies differ: it was not made at one moment on both nodes")
	}
}

// When UnmapHost has returned, no write of that host is applied, no matter how many were under way.
func TestUnmapFencesWritesInFlight(t *testing.T) {
	p, ctx := start(t)
	lun, m := createLUN(t, ctx, p, 8<<20, "a")
	var sessions []*initiator.Session
	for _, portal := range p.Portals() {
		s, err := initiator.Login(ctx, initiator.SessionConfig{InitiatorName: host, Target: m.TargetIqn, Portal: portal})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ready(t, ctx, s, uint16(m.Lun))
		sessions = append(sessions, s)
	}
	// Both sessions write to the whole LUN until their writes are refused.
	var wg sync.WaitGroup
	var mu sync.Mutex
	good := 0
	for k, s := range sessions {
		for w := range 8 {
			wg.Go(func() {
				for n := uint32(0); ; n++ {
					data := pattern(4096, uint64(k)<<40|uint64(w)<<32|uint64(n)|1)
					cdb := make([]byte, 10)
					cdb[0] = 0x2a
					binary.BigEndian.PutUint32(cdb[2:], (n%256)*8)
					binary.BigEndian.PutUint16(cdb[7:], 8)
					r, err := s.Execute(ctx, uint16(m.Lun), cdb, data, nil)
					sense := r.Sense()
					switch {
					case err != nil:
						return
					case r.Status == initiator.StatusGood:
						mu.Lock()
						good++
						mu.Unlock()
					case r.Status == initiator.StatusBusy, sense.Key == initiator.KeyUnitAttention:
					default:
						return
					}
				}
			})
		}
	}
	if err := harness.Wait(ctx, "writes are in flight", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return good > 500, fmt.Sprint(good)
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Client(1).UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: lun.Uuid, HostIqn: host}); err != nil {
		t.Fatal(err)
	}
	var before [2][]byte
	for i := range before {
		b, err := os.ReadFile(image(p, i, lun.Uuid))
		if err != nil {
			t.Fatal(err)
		}
		before[i] = b
	}
	wg.Wait() // every writer has been refused
	for i := range before {
		b, err := os.ReadFile(image(p, i, lun.Uuid))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, before[i]) {
			t.Errorf("node %s: a write landed after the host was unmapped", harness.Names[i])
		}
	}
	if !bytes.Equal(before[0], before[1]) {
		t.Error("the copies differ")
	}
	// The sessions stay, the LUN is gone for them.
	for _, s := range sessions {
		r, err := s.Execute(ctx, uint16(m.Lun), []byte{0, 0, 0, 0, 0, 0}, nil, nil)
		if err != nil {
			t.Fatalf("the session is gone: %v", err)
		}
		if r.Status == initiator.StatusGood {
			t.Error("the LUN is still there")
		}
	}
}

// ready clears the unit attentions of a fresh session.
func ready(t *testing.T, ctx context.Context, s *initiator.Session, lun uint16) {
	t.Helper()
	if err := harness.Wait(ctx, "the unit is ready", func() (bool, string) {
		r, err := s.Execute(ctx, lun, []byte{0, 0, 0, 0, 0, 0}, nil, nil)
		return err == nil && r.Status == initiator.StatusGood, fmt.Sprint(r.Err(0), err)
	}); err != nil {
		t.Fatal(err)
	}
}

func TestExpandOnline(t *testing.T) {
	p, ctx, l, lun, m := loaded(t, "b")
	if _, err := p.Client(0).ExpandLUN(ctx, &targetv1.ExpandLUNRequest{Uuid: lun.Uuid, SizeBytes: 96 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := harness.Wait(ctx, "the host sees the new size", func() (bool, string) {
		n, err := l.d.(*initiator.Device).Rescan(ctx)
		return n == 96<<20, fmt.Sprint(n, err)
	}); err != nil {
		t.Fatal(err)
	}
	want := pattern(1<<20, 77)
	if _, err := l.d.WriteAt(ctx, want, 95<<20); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	for _, n := range harness.Names {
		if _, err := through(t, ctx, m, n).ReadAt(ctx, got, 95<<20); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("node %s: %v", n, err)
		}
	}
	if _, err := l.d.WriteAt(ctx, want, 96<<20); !errors.Is(err, initiator.ErrBeyondEnd) {
		t.Fatalf("beyond the end: %v", err)
	}
	finish(t, ctx, p, l, lun, m)
}

// Reservations belong to the pair, not to a node: made through one node, they hold at the other
// node, also after the first has failed.
func TestReservationsThroughBothNodes(t *testing.T) {
	p, ctx := start(t)
	lun, m := createLUN(t, ctx, p, 8<<20, "a")
	m2, err := p.Client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: lun.Uuid, HostIqn: host2})
	if err != nil {
		t.Fatal(err)
	}
	login := func(name, portal string, lun uint16) *initiator.Session {
		t.Helper()
		s, err := initiator.Login(ctx, initiator.SessionConfig{InitiatorName: name, Target: m.TargetIqn, Portal: portal})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		ready(t, ctx, s, lun)
		return s
	}
	one := login(host, p.ISCSI[0], uint16(m.Lun))
	two := login(host2, p.ISCSI[1], uint16(m2.Lun))
	// exec repeats what a unit attention interrupts.
	exec := func(s *initiator.Session, lun uint32, cdb, out, in []byte) initiator.Result {
		t.Helper()
		for {
			r, err := s.Execute(ctx, uint16(lun), cdb, out, in)
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != initiator.StatusCheckCondition || r.Sense().Key != initiator.KeyUnitAttention {
				return r
			}
		}
	}
	prOut := func(s *initiator.Session, lun uint32, action, kind byte, key, service uint64) byte {
		t.Helper()
		param := make([]byte, 24)
		binary.BigEndian.PutUint64(param, key)
		binary.BigEndian.PutUint64(param[8:], service)
		return exec(s, lun, []byte{0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0}, param, nil).Status
	}
	keys := func(s *initiator.Session, lun uint32) (out []uint64) {
		t.Helper()
		in := make([]byte, 64)
		if r := exec(s, lun, []byte{0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0}, nil, in); r.Status != initiator.StatusGood {
			t.Fatalf("READ KEYS: %v", r.Err(0x5e))
		}
		for i := uint32(0); i+8 <= binary.BigEndian.Uint32(in[4:]); i += 8 {
			out = append(out, binary.BigEndian.Uint64(in[8+i:]))
		}
		return out
	}
	write := func(s *initiator.Session, lun uint32) byte {
		t.Helper()
		return exec(s, lun, []byte{0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0}, make([]byte, 512), nil).Status
	}
	want := func(what string, got, want byte) {
		t.Helper()
		if got != want {
			t.Fatalf("%s: status %02x, want %02x", what, got, want)
		}
	}
	const good, conflict = initiator.StatusGood, initiator.StatusReservationConflict
	want("host 1 registers through a", prOut(one, m.Lun, 0, 0, 0, 0x11), good)
	want("host 2 registers through b", prOut(two, m2.Lun, 0, 0, 0, 0x22), good)
	for i, k := range [][]uint64{keys(one, m.Lun), keys(two, m2.Lun)} {
		if len(k) != 2 || k[0]+k[1] != 0x33 {
			t.Fatalf("host %d sees keys %x", i+1, k)
		}
	}
	want("host 1 reserves", prOut(one, m.Lun, 1, 1, 0x11, 0), good) // write exclusive
	want("host 1 writes", write(one, m.Lun), good)
	want("host 2 writes through the other node", write(two, m2.Lun), conflict)
	want("host 2 reserves", prOut(two, m2.Lun, 1, 1, 0x22, 0), conflict)
	want("host 2 preempts", prOut(two, m2.Lun, 4, 1, 0x22, 0x11), good)
	want("host 2 writes", write(two, m2.Lun), good)
	want("host 1 writes", write(one, m.Lun), conflict)
	if k := keys(one, m.Lun); len(k) != 1 || k[0] != 0x22 {
		t.Fatalf("keys after the preemption: %x", k)
	}
	if err := p.Kill(0); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitPhase(ctx, 1, targetv1.Phase_PHASE_ALONE); err != nil {
		t.Fatal(err)
	}
	want("host 2 writes after the fail-over", write(two, m2.Lun), good)
	one = login(host, p.ISCSI[1], uint16(m.Lun))
	want("host 1 writes after the fail-over", write(one, m.Lun), conflict)
}
