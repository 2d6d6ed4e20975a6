package scsi_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func prOut(action, typ byte) []byte { return cdb(0x5f, 10, 1, int(action), 2, int(typ), 8, 24) }

func prParam(key, service uint64, flags byte) []byte {
	p := make([]byte, 24)
	binary.BigEndian.PutUint64(p, key)
	binary.BigEndian.PutUint64(p[8:], service)
	p[20] = flags
	return p
}

func prIn(action byte) []byte { return cdb(0x5e, 10, 1, int(action), 7, 1) }

// A reservation taken through one port holds against the other, and is what both report.
func TestReservationAcrossPorts(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 2)
	one := make([]byte, 512)
	a.good(prOut(0, 0), prParam(0, 0xa, 1), 0)
	b.good(prOut(0, 0), prParam(0, 0xb, 0), 0)
	a.good(prOut(1, scsi.PRExclusiveAccess), prParam(0xa, 0, 0), 0)
	b.conflicts(cdb16(0x88, 0, 0, 1), nil, 512)
	b.conflicts(cdb16(0x8a, 0, 0, 1), one, 0)
	b.conflicts(cdb16(0x8a, 0, 0, 0), nil, 0) // also what moves nothing
	b.conflicts(cdb(0x35, 10), nil, 0)
	b.conflicts(cdb(0x1a, 6, 2, 0x3f, 4, 0xff), nil, 255)
	b.good(cdb(0x00, 6), nil, 0)
	b.good(cdb(0x12, 6, 4, 36), nil, 36)
	a.good(cdb16(0x8a, 0, 0, 1), one, 0)
	keys := b.good(prIn(0), nil, 256)
	if want := []byte{0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0xa, 0, 0, 0, 0, 0, 0, 0, 0xb}; !bytes.Equal(keys, want) {
		t.Errorf("keys % x", keys)
	}
	if res := b.good(prIn(1), nil, 256); len(res) != 24 || res[15] != 0xa || res[21] != scsi.PRExclusiveAccess {
		t.Errorf("reservation % x", res)
	}
	full := b.good(prIn(3), nil, 256)
	if !bytes.Contains(full, []byte("iqn.a,i,0x800102030405\x00")) || !bytes.Contains(full, []byte("iqn.b,i,0x")) {
		t.Errorf("full status %q", full)
	}
	if n := binary.BigEndian.Uint32(full[4:]); int(n) != len(full)-8 || n%4 != 0 {
		t.Errorf("full status says %d of %d bytes", n, len(full))
	}
	b.good(prOut(5, scsi.PRExclusiveAccess), prParam(0xb, 0xa, 0), 0)
	if s := a.do(cdb(0x00, 6), nil, 0).sense(); s != 0x062a05 {
		t.Errorf("the preempted host was told %06x", s)
	}
	a.conflicts(cdb16(0x88, 0, 0, 1), nil, 512)
	b.good(cdb16(0x88, 0, 0, 1), nil, 512)
}

// R9: a command that waited is judged by the reservations of the moment it starts.
func TestReservationIsJudgedWhenExecutionStarts(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 1)
	a.good(prOut(0, 0), prParam(0, 0xa, 0), 0)
	r.gate.set(true, scsi.AccessReady)
	late := b.start(cdb16(0x8a, 0, 0, 1), pattern(512, 1), 0)
	a.good(prOut(1, scsi.PRWriteExclusive), prParam(0xa, 0, 0), 0)
	r.gate.set(false, scsi.AccessReady)
	if k := late.wait(t); k.Status != scsi.StatusReservationConflict {
		t.Errorf("status %02x", k.Status)
	}
	if got := a.good(cdb16(0x88, 0, 0, 1), nil, 512); !bytes.Equal(got, make([]byte, 512)) {
		t.Error("it was written")
	}
}

func TestPreemptAndAbortKills(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 2)
	a.good(prOut(0, 0), prParam(0, 0xa, 0), 0)
	b.good(prOut(0, 0), prParam(0, 0xb, 0), 0)
	r.gate.set(true, scsi.AccessReady)
	victim := a.start(cdb16(0x8a, 0, 0, 1), pattern(512, 1), 0)
	b.good(prOut(5, scsi.PRWriteExclusive), prParam(0xb, 0xa, 0), 0)
	if victim.running() {
		t.Fatal("PREEMPT AND ABORT was complete before the command was")
	}
	if victim.Status != scsi.StatusTaskAborted || victim.Aborted {
		t.Errorf("status %02x, aborted %v", victim.Status, victim.Aborted)
	}
}

func TestPersistentReserveOutThatIsRefused(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	for _, c := range []struct {
		name string
		cdb  []byte
		out  []byte
		want uint32
	}{
		{"short list", cdb(0x5f, 10, 8, 23), make([]byte, 23), 0x051a00},
		{"less than the CDB says", cdb(0x5f, 10, 8, 24), make([]byte, 20), 0x051a00},
		{"more than there may be", cdb(0x5f, 10, 5, 0xff, 8, 24), make([]byte, 24), 0x051a00},
		{"longer than the basic list", cdb(0x5f, 10, 8, 28), make([]byte, 28), 0x051a00},
		{"SPEC_I_PT", prOut(0, 0), prParam(0, 1, 8), 0x052600},
		{"ALL_TG_PT", prOut(0, 0), prParam(0, 1, 4), 0x052600},
		{"unknown service action", prOut(0x1f, 0), prParam(0, 1, 0), 0x052400},
		{"scope", prOut(1, 0x13), prParam(0, 1, 0), 0x052400},
		{"type", prOut(1, 2), prParam(0, 1, 0), 0x052400},
		{"move without a TransportID", prOut(7, 0), prParam(0, 1, 0), 0x052600},
	} {
		t.Run(c.name, func(t *testing.T) { h.fails(c.want, c.cdb, c.out, 0) })
	}
	h.fails(0x052400, prIn(4), nil, 256)
}

func TestRegisterAndMove(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 2)
	a.good(prOut(0, 0), prParam(0, 0xa, 0), 0)
	a.good(prOut(1, scsi.PRExclusiveAccess), prParam(0xa, 0, 0), 0)
	id := append([]byte{0x45, 0, 0, 0}, "iqn.b,i,0x800102030405\x00\x00"...)
	binary.BigEndian.PutUint16(id[2:], uint16(len(id)-4))
	p := prParam(0xa, 0xb, 0)
	p[17], p[19] = 0x02, 2 // UNREG; relative port 2
	binary.BigEndian.PutUint32(p[20:], uint32(len(id)))
	p = append(p, id...)
	a.good(cdb(0x5f, 10, 1, 7, 8, len(p)), p, 0)
	a.conflicts(cdb16(0x88, 0, 0, 1), nil, 512)
	b.good(cdb16(0x88, 0, 0, 1), nil, 512)
}

func TestReserve6(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 2)
	a.good(cdb(0x16, 6), nil, 0)
	b.conflicts(cdb(0x16, 6), nil, 0)
	b.conflicts(cdb(0x00, 6), nil, 0)
	b.conflicts(prOut(0, 0), prParam(0, 1, 0), 0)
	b.good(cdb(0x17, 6), nil, 0) // nothing
	b.conflicts(cdb16(0x88, 0, 0, 1), nil, 512)
	done := make(chan struct{})
	a.srv.CloseNexus(a.nexus, func() { close(done) })
	<-done
	b.good(cdb(0x16, 6), nil, 0)
}
