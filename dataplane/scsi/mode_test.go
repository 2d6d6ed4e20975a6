package scsi_test

import (
	"bytes"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func (h *host) modePage(pc, page byte) []byte {
	h.t.Helper()
	return h.good(cdb(0x1a, 6, 1, 8, 2, int(pc)<<6|int(page), 4, 255), nil, 255)[4:]
}

func modeSelect(save bool, page []byte) (c, out []byte) {
	out = append([]byte{0, 0, 0, 0}, page...)
	flags := 0x10
	if save {
		flags |= 1
	}
	return cdb(0x15, 6, 1, flags, 4, len(out)), out
}

func TestModeSense(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	all := h.good(cdb(0x1a, 6, 2, 0x3f, 4, 255), nil, 255)
	if int(all[0]) != len(all)-1 || all[3] != 8 || all[2]&0x10 == 0 {
		t.Errorf("% x", all)
	}
	want := append(append(h.modePage(0, 8), h.modePage(0, 0x0a)...), h.modePage(0, 0x1c)...)
	if !bytes.Equal(all[12:], want) {
		t.Error("all pages are not the pages")
	}
	ten := h.good(cdb(0x5a, 10, 1, 0x10, 2, 0x3f, 8, 255), nil, 255) // LLBAA
	if int(ten[0])<<8|int(ten[1]) != len(ten)-2 || ten[4]&1 == 0 || ten[7] != 16 || !bytes.Equal(ten[24:], want) {
		t.Errorf("% x", ten)
	}
	if b := h.modePage(0, 8); b[2]&4 == 0 {
		t.Error("WCE is off")
	}
	h.fails(0x052400, cdb(0x1a, 6, 2, 0x02, 4, 255), nil, 255)
	h.fails(0x052400, cdb(0x1a, 6, 2, 0x0a, 3, 1, 4, 255), nil, 255)
}

func TestModeSelect(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 2)
	page := a.modePage(0, 0x0a)
	page[0] &= 0x3f
	page[2] |= 4 // D_SENSE
	c, out := modeSelect(false, page)
	a.good(c, out, 0)
	if k := a.do(cdb16(0x88, 0, testBlocks, 1), nil, 512); k.Sense[0] != 0x72 || k.sense() != 0x052100 {
		t.Errorf("not in descriptor format: % x", k.Sense)
	}
	b.fails(0x062a01, cdb(0x00, 6), nil, 0)
	a.good(cdb(0x00, 6), nil, 0) // it knows
	if got := a.modePage(3, 0x0a); got[2]&4 != 0 {
		t.Error("it was saved without SP")
	}
	page[4] |= 8 // SWP
	c, out = modeSelect(false, page)
	a.good(c, out, 0)
	a.fails(0x072702, cdb16(0x8a, 0, 0, 1), make([]byte, 512), 0)
	if got := a.tmf(scsi.TMFLUNReset, 0); got != scsi.TMFComplete {
		t.Fatal(got)
	}
	a.fails(0x062903, cdb(0x00, 6), nil, 0)
	a.good(cdb16(0x8a, 0, 0, 1), make([]byte, 512), 0) // a reset brings the saved values back

	caching := a.modePage(0, 8)
	caching[0] &= 0x3f
	caching[2] &^= 4
	c, out = modeSelect(true, caching)
	a.good(c, out, 0)
	if cur, saved, def := a.modePage(0, 8), a.modePage(3, 8), a.modePage(2, 8); cur[2]&4 != 0 || saved[2]&4 != 0 || def[2]&4 == 0 {
		t.Errorf("WCE: current % x, saved % x, default % x", cur[2], saved[2], def[2])
	}
}

func TestModeSelectThatIsRefused(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	page := h.modePage(0, 0x0a)
	page[0] &= 0x3f
	with := func(at int, v byte) []byte {
		p := bytes.Clone(page)
		p[at] = v
		return p
	}
	for _, c := range []struct {
		name string
		page []byte
		want uint32
	}{
		{"not changeable", with(3, 0), 0x052600},
		{"unknown page", with(0, 0x02), 0x052600},
		{"subpage", with(0, 0x4a), 0x052600},
		{"page length", with(1, 9), 0x052600},
		{"cut", page[:8], 0x051a00},
		{"cut after the code", page[:1], 0x051a00},
	} {
		t.Run(c.name, func(t *testing.T) {
			cdb, out := modeSelect(false, c.page)
			h.fails(c.want, cdb, out, 0)
		})
	}
	c, out := modeSelect(false, page)
	h.fails(0x052400, cdb(0x15, 6, 4, len(out)), out, 0)                  // PF
	h.fails(0x051a00, c, out[:5], 0)                                      // less than the CDB says
	h.fails(0x051a00, cdb(0x15, 6, 1, 0x10, 4, 3), make([]byte, 3), 0)    // no header
	h.fails(0x051a00, cdb(0x15, 6, 1, 0x10, 4, 4), []byte{0, 0, 0, 8}, 0) // no descriptor
	bad := append([]byte{0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 2, 0}, page...)
	h.fails(0x052600, cdb(0x15, 6, 1, 0x10, 4, len(bad)), bad, 0) // another number of blocks
	bad[7] = 0
	h.good(cdb(0x15, 6, 1, 0x10, 4, len(bad)), bad, 0)
	h.good(cdb(0x15, 6, 1, 0x10), nil, 0)
}
