package scsi_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func TestStandardInquiry(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	b := h.good(cdb(0x12, 6, 4, 255), nil, 255)
	if len(b) != int(b[4])+5 || string(b[8:32]) != "GEMEL   ALUA LUN        " || b[5]&0x30 != 0x10 || b[7]&2 == 0 {
		t.Errorf("% x", b)
	}
	if b := h.good(cdb(0x12, 6, 4, 5), nil, 5); len(b) != 5 {
		t.Errorf("%d bytes for an allocation length of 5", len(b))
	}
	h.fails(0x052400, cdb(0x12, 6, 2, 0x80, 4, 255), nil, 255) // a page code without EVPD
	h.fails(0x052400, cdb(0x12, 6, 1, 1, 2, 0xc7, 4, 255), nil, 255)
}

func (h *host) vpd(page byte) []byte {
	h.t.Helper()
	b := h.good(cdb(0x12, 6, 1, 1, 2, int(page), 3, 4), nil, 1024)
	if b[1] != page || int(binary.BigEndian.Uint16(b[2:])) != len(b)-4 {
		h.t.Fatalf("page %02x: % x", page, b[:4])
	}
	return b
}

func TestVitalProductData(t *testing.T) {
	r := newRig(t, nil)
	h := r.login("iqn.a", 1)
	for _, p := range h.vpd(0)[4:] {
		h.vpd(p)
	}
	if s := string(h.vpd(0x80)[4:]); s != "3b2c6d2e54f44c8e9a516f0f5f2f1a10" {
		t.Errorf("serial %q", s)
	}
	limits := h.vpd(0xb0)
	if len(limits) != 64 || binary.BigEndian.Uint32(limits[8:]) != scsi.MaxTransfer/512 {
		t.Errorf("block limits % x", limits)
	}
}

// designators splits page 83h into what names the unit and what names the port or target.
func designators(page []byte) (unit, rest map[byte]string) {
	unit, rest = map[byte]string{}, map[byte]string{}
	for b := page[4:]; len(b) >= 4; b = b[4+int(b[3]):] {
		m := rest
		if b[1]&0x30 == 0 {
			m = unit
		}
		m[b[1]] = string(b[4 : 4+int(b[3])])
	}
	return unit, rest
}

func TestDesignatorsOfUnitAndPort(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.a", 2)
	unit1, port1 := designators(a.vpd(0x83))
	unit2, port2 := designators(b.vpd(0x83))
	if len(unit1) != 2 || unit1[3] != unit2[3] || unit1[1] != unit2[1] {
		t.Errorf("the unit is called %q and %q", unit1, unit2)
	}
	if got := hex.EncodeToString([]byte(unit1[3])); got != scsi.WWIDString(testUUID) || got[:7] != "602474d" {
		t.Errorf("NAA %s", got)
	}
	if port1[0x94] != "\x00\x00\x00\x01" || port2[0x94] != "\x00\x00\x00\x02" || port1[0x95] != "\x00\x00\x00\x01" {
		t.Errorf("ports %q and %q", port1, port2)
	}
	if want := "iqn.2024-01.storage.gemel:test,t,0x0002\x00"; port2[0x98] != want {
		t.Errorf("port name %q", port2[0x98])
	}
	if scsi.WWID("3b2c6d2e-54f4-4c8e-9a51-6f0f5f2f1a11") == scsi.WWID(testUUID) {
		t.Error("two LUNs have one designator")
	}
}

func TestReportTargetPortGroups(t *testing.T) {
	r := newRig(t, nil)
	h := r.login("iqn.a", 1)
	rtpg := func(format byte, alloc int) []byte {
		return h.good(cdb(0xa3, 12, 1, 0x0a|int(format)<<5, 8, alloc>>8, 9, alloc&0xff), nil, alloc)
	}
	asked := h.nexus.AskedGroups()
	if h.fails(0x052400, cdb(0xa3, 12, 1, 0x0a|0x40, 9, 16), nil, 16); asked != 0 || h.nexus.AskedGroups() != 0 {
		t.Error("asked without an answer:", h.nexus.AskedGroups())
	}
	want := []byte{0, 0, 0, 24,
		0x80, 0x8b, 0, 1, 0, 2, 0, 1, 0, 0, 0, 1,
		0x00, 0x8b, 0, 2, 0, 2, 0, 1, 0, 0, 0, 2}
	if got := rtpg(0, 255); !bytes.Equal(got, want) {
		t.Errorf("% x", got)
	}
	if got := rtpg(1, 255); got[3] != 28 || got[4] != 0x10 || got[5] != 10 || !bytes.Equal(got[8:], want[4:]) {
		t.Errorf("extended: % x", got)
	}
	if got := rtpg(0, 4); !bytes.Equal(got, want[:4]) {
		t.Errorf("cut: % x", got)
	}
	other := r.login("iqn.b", 1)
	asked = h.nexus.AskedGroups()
	r.gate.set(false, scsi.AccessUnavailable)
	if got := rtpg(0, 255); !bytes.Equal(got, want) {
		t.Error("not answered when unavailable")
	}
	if last := h.nexus.AskedGroups(); asked == 0 || last <= asked || other.nexus.AskedGroups() != 0 {
		t.Error(asked, last, other.nexus.AskedGroups())
	}
}

func TestAccessStates(t *testing.T) {
	r := newRig(t, nil)
	h := r.login("iqn.a", 1)
	r.gate.set(false, scsi.AccessUnavailable)
	h.fails(0x02040c, cdb(0x00, 6), nil, 0)
	h.fails(0x02040c, cdb16(0x8a, 0, 0, 0), nil, 0)
	h.good(cdb(0x12, 6, 4, 36), nil, 36)
	h.good(cdb(0xa0, 12, 9, 16), nil, 16)
	if b := h.good(cdb(0x03, 6, 4, 18), nil, 18); b[2] != 2 || b[12] != 4 || b[13] != 0x0c {
		t.Errorf("REQUEST SENSE: % x", b)
	}
	r.gate.set(false, scsi.AccessTransitioning)
	if k := h.do(cdb(0x00, 6), nil, 0); k.Status != scsi.StatusBusy {
		t.Errorf("status %02x", k.Status)
	}
	late := &scsi.Task{Nexus: h.nexus, Arrived: bootTime() + 4e9}
	if !h.srv.Submit(late) || late.Status != scsi.StatusCheckCondition || late.Sense[12] != 4 || late.Sense[13] != 0x0a {
		t.Errorf("after the transition time: %02x % x", late.Status, late.Sense)
	}
	r.gate.set(false, scsi.AccessReady)
	h.good(cdb(0x00, 6), nil, 0)
}

func TestReportLUNsAndUnknownLUNs(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	if b := h.good(cdb(0xa0, 12, 9, 64), nil, 64); !bytes.Equal(b, []byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("% x", b)
	}
	h.fails(0x052400, cdb(0xa0, 12, 2, 0x55, 9, 64), nil, 64)
	for _, lun := range []uint64{1 << 48, 0x4001 << 48, 0x0100 << 48, 0xc101 << 48, 1} {
		for _, c := range []struct {
			op     byte
			status byte
		}{{0x12, 0}, {0xa0, 0}, {0x03, 0}, {0x00, 2}, {0x28, 2}, {0xff, 2}} {
			k := &scsi.Task{Nexus: h.nexus, LUN: lun, Expected: 255, Read: true, Alloc: func(n int) []byte { return make([]byte, n) }}
			k.CDB[0], k.CDB[4], k.CDB[9] = c.op, 36, 36
			if !h.srv.Submit(k) || k.Status != c.status {
				t.Errorf("LUN %016x, operation %02x: status %02x", lun, c.op, k.Status)
			}
			if c.op == 0x12 && k.DataIn[0] != 0x7f {
				t.Errorf("INQUIRY says there is a unit: %02x", k.DataIn[0])
			}
		}
	}
}

func TestReadCapacity16(t *testing.T) {
	r := newRig(t, nil)
	h := r.login("iqn.a", 1)
	b := h.good(cdb(0x9e, 16, 1, 0x10, 13, 32), nil, 32)
	if binary.BigEndian.Uint64(b) != testBlocks-1 || binary.BigEndian.Uint32(b[8:]) != 512 || b[13] != 3 || b[14] != 0xc0 {
		t.Errorf("% x", b)
	}
	cfg := r.unit.Config()
	cfg.SizeBytes = 3 << 40
	if err := r.unit.Update(cfg); err != nil {
		t.Fatal(err)
	}
	if b := h.good(cdb(0x25, 10), nil, 8); !bytes.Equal(b, []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0}) {
		t.Errorf("READ CAPACITY(10) of 3 TiB: % x", b)
	}
	for _, bad := range []func(*scsi.UnitConfig){
		func(c *scsi.UnitConfig) { c.SizeBytes = 511 },
		func(c *scsi.UnitConfig) { c.SizeBytes = 0 },
		func(c *scsi.UnitConfig) { c.BlockSize = 1000 },
		func(c *scsi.UnitConfig) { c.BlockSize = 4096 },
		func(c *scsi.UnitConfig) { c.UUID = "another" },
	} {
		cfg := r.unit.Config()
		bad(&cfg)
		if err := r.unit.Update(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestReportSupportedOperationCodes(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	rsoc := func(option, op byte, action int) []byte {
		return h.good(cdb(0xa3, 12, 1, 0x0c, 2, int(option), 3, int(op), 5, action, 8, 0xff), nil, 0xff00)
	}
	all := rsoc(0, 0, 0)
	if int(binary.BigEndian.Uint32(all)) != len(all)-4 || len(all) < 8*40 {
		t.Fatalf("%d bytes, says % x", len(all), all[:4])
	}
	for b := all[4:]; len(b) >= 8; b = b[8:] {
		option, action := byte(1), 0
		if b[5]&1 != 0 {
			option, action = 2, int(b[3])
		}
		one := rsoc(option, b[0], action)
		if one[1]&7 != 3 || int(one[3]) != int(b[7]) || one[4] != b[0] {
			t.Errorf("%02x/%02x: % x", b[0], b[3], one)
		}
		// What is listed is not answered with "invalid command operation code".
		k := h.do(cdb(b[0], 16, 1, action), nil, 0)
		if k.sense() == 0x052000 {
			t.Errorf("%02x/%02x is listed but unknown", b[0], b[3])
		}
	}
	if b := rsoc(1, 0xff, 0); b[1]&7 != 1 {
		t.Errorf("an unknown operation code: % x", b)
	}
	if b := rsoc(0x80|1, 0x28, 0); b[1]&0x80 == 0 || len(b) != 4+10+12 {
		t.Errorf("with timeouts: % x", b)
	}
	h.fails(0x052400, cdb(0xa3, 12, 1, 0x0c, 2, 1, 3, 0x9e, 9, 64), nil, 64) // has service actions
	h.fails(0x052400, cdb(0xa3, 12, 1, 0x0c, 2, 7, 9, 64), nil, 64)
	if b := h.good(cdb(0xa3, 12, 1, 0x0d, 9, 16), nil, 16); len(b) != 4 {
		t.Errorf("% x", b)
	}
}

func TestUnitAttentions(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 2)
	raise := func(x scsi.Attention, except *scsi.NexusID) { r.cluster.Raise(r.unit, except, nil, x) }
	raise(scsi.AttnALUAChanged, &b.nexus.ID)
	raise(scsi.AttnCapacityChanged, nil)
	raise(scsi.AttnALUAChanged, &b.nexus.ID) // once each
	a.good(cdb(0x12, 6, 4, 36), nil, 36)     // clears nothing
	a.fails(0x062a06, cdb16(0x88, 0, 0, 1), nil, 512)
	a.fails(0x062a09, cdb(0xff, 6), nil, 0) // before any other reason to refuse
	a.good(cdb16(0x88, 0, 0, 1), nil, 512)
	b.fails(0x062a09, cdb(0x00, 6), nil, 0)
	b.good(cdb(0x00, 6), nil, 0)

	raise(scsi.AttnLUNsChanged, nil)
	a.good(cdb(0xa0, 12, 9, 64), nil, 64) // this is the answer to it
	a.good(cdb(0x00, 6), nil, 0)
	if s := b.good(cdb(0x03, 6, 4, 18), nil, 18); s[2] != 6 || s[12] != 0x3f || s[13] != 0x0e {
		t.Errorf("REQUEST SENSE: % x", s)
	}
	b.good(cdb(0x00, 6), nil, 0)

	for i := range 40 { // bounded
		raise(scsi.Attention(0x2a10+i), nil)
	}
	n := 0
	for a.do(cdb(0x00, 6), nil, 0).Status != scsi.StatusGood {
		if n++; n > 20 {
			t.Fatal("there is no end to the attentions")
		}
	}
	if n == 0 {
		t.Error("none is left")
	}
}

func TestPoliteRefusals(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	h.fails(0x052000, cdb(0x83, 16), nil, 0)                      // EXTENDED COPY
	h.fails(0x052000, cdb(0xa4, 12, 1, 0x0a), nil, 0)             // SET TARGET PORT GROUPS: implicit only
	h.good(cdb(0x1e, 6, 4, 1), nil, 0)                            // PREVENT
	h.good(cdb(0x1b, 6), nil, 0)                                  // STOP: flushes
	h.fails(0x052400, cdb(0x1b, 6, 4, 2), nil, 0)                 // eject
	h.good(cdb(0x4d, 10, 8, 16), nil, 16)                         // the page of log pages
	h.fails(0x052400, cdb(0x4d, 10, 2, 0x0d, 8, 16), nil, 16)     // any other
	h.fails(0x052400, cdb(0xa3, 12, 1, 0x0a|0x40, 9, 16), nil, 4) // RTPG in an unknown format
}
