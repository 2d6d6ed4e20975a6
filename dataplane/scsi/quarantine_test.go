package scsi_test

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/single"
)

// Of a unit in quarantine hosts learn what it is and which paths it has; every other command is
// refused, whatever it does, until the quarantine has ended.
func TestQuarantinedUnit(t *testing.T) {
	r := newRig(t, nil)
	h := r.login("iqn.host", 1)
	ask := func(c []byte, in int) uint32 { return h.do(c, nil, in).sense() }
	refused := map[string]func() uint32{
		"TEST UNIT READY":   func() uint32 { return ask(cdb(0x00, 6), 0) },
		"READ":              func() uint32 { return ask(cdb16(0x88, 0, 0, 1), 512) },
		"WRITE":             func() uint32 { return h.do(cdb16(0x8a, 0, 0, 1), make([]byte, 512), 0).sense() },
		"SYNCHRONIZE CACHE": func() uint32 { return ask(cdb(0x35, 10), 0) },
		"READ CAPACITY":     func() uint32 { return ask(cdb(0x25, 10), 8) },
		"PR IN":             func() uint32 { return ask(cdb(0x5e, 10, 0, 0, 0, 0, 0, 0, 64), 64) },
	}
	answered := map[string]func() uint32{
		"INQUIRY":     func() uint32 { return ask(cdb(0x12, 6, 4, 96), 96) },
		"REPORT LUNS": func() uint32 { return ask(cdb(0xa0, 12, 9, 64), 64) },
		"RTPG":        func() uint32 { return ask(cdb(0xa3, 12, 1, 0x0a, 9, 64), 64) },
	}
	check := func(want uint32) {
		t.Helper()
		for name, f := range refused {
			if got := f(); got != want {
				t.Errorf("%s: %06x, want %06x", name, got, want)
			}
		}
		for name, f := range answered {
			if got := f(); got != 0 {
				t.Errorf("%s: %06x", name, got)
			}
		}
		d := h.do(cdb(0x03, 6, 4, 18), nil, 18).DataIn
		if got := uint32(d[2])<<16 | uint32(d[12])<<8 | uint32(d[13]); got != want {
			t.Errorf("REQUEST SENSE has %06x, want %06x", got, want)
		}
	}
	check(0)
	r.unit.Quarantine(true)
	check(0x020403)
	r.unit.Quarantine(false)
	check(0)
}

// A command that crashes the process says of which unit it was, and the crash goes on.
func TestCommandThatPanicsIsBlamed(t *testing.T) {
	r := newRig(t, nil)
	var blamed []*scsi.Unit
	c := &single.Cluster{}
	u, err := scsi.NewUnit(scsi.UnitConfig{UUID: testUUID, SizeBytes: testSize}, broken{r.medium})
	if err != nil {
		t.Fatal(err)
	}
	c.AddUnit(u)
	r.servers[0] = c.AddServer(scsi.Config{TargetName: "iqn.2024-01.storage.gemel:test", Blame: func(u *scsi.Unit) { blamed = append(blamed, u) }})
	h := r.login("iqn.host", 1)
	if s := h.do(cdb(0x12, 6, 4, 96), nil, 96).sense(); s != 0 || len(blamed) != 0 {
		t.Errorf("%06x, %v", s, blamed)
	}
	func() {
		defer func() {
			if v := recover(); v != "broken" {
				t.Errorf("it ends with %v", v)
			}
		}()
		h.do(cdb16(0x88, 0, 0, 1), nil, 512)
	}()
	if len(blamed) != 1 || blamed[0] != u {
		t.Errorf("%v is blamed", blamed)
	}
}

type broken struct{ scsi.Medium }

func (broken) Submit(*scsi.Op) bool { panic("broken") }
