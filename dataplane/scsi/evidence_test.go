package scsi_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// request is a command as a host sends it.
type request struct {
	cdb, out []byte
	in       int
}

// cdb12 makes a 12-byte block command.
func cdb12(op byte, blocks int) []byte { return cdb(op, 12, 9, blocks) }

// pathCommands are all commands of which two show that a host uses a path.
func pathCommands() map[string]request {
	block := pattern(512, 1)
	return map[string]request{
		"TEST UNIT READY":      {cdb(0x00, 6), nil, 0},
		"READ (6)":             {cdb(0x08, 6, 4, 1), nil, 512},
		"READ (10)":            {cdb10(0x28, 0, 0, 1), nil, 512},
		"READ (12)":            {cdb12(0xa8, 1), nil, 512},
		"READ (16)":            {cdb16(0x88, 0, 0, 1), nil, 512},
		"WRITE (6)":            {cdb(0x0a, 6, 4, 1), block, 0},
		"WRITE (10)":           {cdb10(0x2a, 0, 0, 1), block, 0},
		"WRITE (12)":           {cdb12(0xaa, 1), block, 0},
		"WRITE (16)":           {cdb16(0x8a, 0, 0, 1), block, 0},
		"WRITE AND VERIFY(10)": {cdb10(0x2e, 0, 0, 1), block, 0},
		"WRITE AND VERIFY(12)": {cdb12(0xae, 1), block, 0},
		"WRITE AND VERIFY(16)": {cdb16(0x8e, 0, 0, 1), block, 0},
	}
}

func rtpgCDB() []byte { return cdb(0xa3, 12, 1, 0x0a, 9, 64) }

// Two of TEST UNIT READY, READ and WRITE show the use of a path, in whatever mixture; the time is
// the second one's and stays.
func TestTwoCommandsShowTheUseOfAPath(t *testing.T) {
	r := newRig(t, nil)
	i := 0
	for firstName, first := range pathCommands() {
		for secondName, second := range pathCommands() {
			i++
			h := r.login(fmt.Sprintf("iqn.host%d", i), 1)
			h.good(first.cdb, first.out, first.in)
			if at := h.nexus.UsesPath(); at != 0 {
				t.Errorf("%s alone showed it at %d", firstName, at)
			}
			k := h.do(second.cdb, second.out, second.in)
			if at := h.nexus.UsesPath(); at != k.Arrived {
				t.Errorf("%s, %s: shown at %d, want %d", firstName, secondName, at, k.Arrived)
			}
			h.good(first.cdb, first.out, first.in)
			h.good(rtpgCDB(), nil, 64)
			if at := h.nexus.UsesPath(); at != k.Arrived {
				t.Errorf("%s, %s: shown at %d, and later at %d", firstName, secondName, k.Arrived, at)
			}
		}
	}
}

// The two commands may be for two LUNs; each session needs its own.
func TestUseOfAPathIsOfTheSession(t *testing.T) {
	r := newRig(t, nil)
	u, err := scsi.NewUnit(scsi.UnitConfig{UUID: "3b2c6d2e-54f4-4c8e-9a51-6f0f5f2f1a11", SizeBytes: testSize}, r.gate)
	if err != nil {
		t.Fatal(err)
	}
	r.cluster.AddUnit(u)
	h, other := r.login("iqn.a", 1), r.login("iqn.a", 2)
	h.doAt(1<<48, cdb(0x00, 6), 0) // takes the attention
	h.good(cdb(0x00, 6), nil, 0)
	other.good(cdb(0x00, 6), nil, 0)
	if a, b := h.nexus.UsesPath(), other.nexus.UsesPath(); a != 0 || b != 0 {
		t.Error("one command for each session showed a path:", a, b)
	}
	k := &scsi.Task{Nexus: h.nexus, LUN: 1 << 48, Arrived: 12345} // TEST UNIT READY
	if !h.srv.Submit(k) || k.Status != scsi.StatusGood {
		t.Fatalf("status %02x", k.Status)
	}
	if a, b := h.nexus.UsesPath(), other.nexus.UsesPath(); a != 12345 || b != 0 {
		t.Errorf("shown at %d and %d, want 12345 and 0", a, b)
	}
	if at := r.login("iqn.a", 1).nexus.UsesPath(); at != 0 {
		t.Error("a new session of the host has shown its path at", at)
	}
}

// The first REPORT TARGET PORT GROUPS shows it, if it is answered.
func TestTargetPortGroupsShowTheUseOfAPath(t *testing.T) {
	r := newRig(t, nil)
	h := r.loginRaw("iqn.a", 1)
	h.fails(0x062900, rtpgCDB(), nil, 64)
	h.fails(0x052400, cdb(0xa3, 12, 1, 0x0a|0x40, 9, 64), nil, 64)
	if at := h.nexus.UsesPath(); at != 0 {
		t.Error("shown without an answer:", at)
	}
	r.gate.set(false, scsi.AccessUnavailable) // of no use now, but known to the multipath layer
	k := h.do(rtpgCDB(), nil, 64)
	if at := h.nexus.UsesPath(); k.Status != scsi.StatusGood || at != k.Arrived {
		t.Errorf("shown at %d, want %d (status %02x)", at, k.Arrived, k.Status)
	}
	h.good(rtpgCDB(), nil, 64)
	if at := h.nexus.UsesPath(); at != k.Arrived {
		t.Errorf("shown at %d, and later at %d", k.Arrived, at)
	}
}

// What every host sends that looks around, or that has found a unit, shows nothing.
func TestDiscoveryDoesNotShowTheUseOfAPath(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	for name, c := range map[string]request{
		"INQUIRY":           {cdb(0x12, 6, 4, 96), nil, 96},
		"INQUIRY page 83h":  {cdb(0x12, 6, 1, 1, 2, 0x83, 3, 4), nil, 1024},
		"REPORT LUNS":       {cdb(0xa0, 12, 9, 64), nil, 64},
		"REQUEST SENSE":     {cdb(0x03, 6, 4, 18), nil, 18},
		"READ CAPACITY(10)": {cdb(0x25, 10), nil, 8},
		"READ CAPACITY(16)": {cdb(0x9e, 16, 1, 0x10, 13, 32), nil, 32},
		"MODE SENSE(6)":     {cdb(0x1a, 6, 2, 0x3f, 4, 255), nil, 255},
		"MODE SENSE(10)":    {cdb(0x5a, 10, 2, 0x3f, 8, 255), nil, 255},
		"REPORT OPCODES":    {cdb(0xa3, 12, 1, 0x0c, 8, 4), nil, 1024},
		"PR IN":             {cdb(0x5e, 10, 8, 64), nil, 64},
		"LOG SENSE":         {cdb(0x4d, 10, 8, 64), nil, 64},
		"START STOP UNIT":   {cdb(0x1b, 6, 4, 1), nil, 0},
		"SYNCHRONIZE CACHE": {cdb10(0x35, 0, 0, 0), nil, 0},
		"VERIFY(10)":        {cdb10(0x2f, 0, 0, 1), nil, 0},
		"GET LBA STATUS":    {cdb(0x9e, 16, 1, 0x12, 13, 24), nil, 24},
	} {
		for range 3 {
			h.good(c.cdb, c.out, c.in)
		}
		if at := h.nexus.UsesPath(); at != 0 {
			t.Fatalf("%s showed it at %d", name, at)
		}
	}
}

// Commands that no unit has looked at show nothing.
func TestRefusedCommandsDoNotShowTheUseOfAPath(t *testing.T) {
	r := newRig(t, nil)
	h := r.loginRaw("iqn.a", 1)
	tur := cdb(0x00, 6)
	h.fails(0x062900, tur, nil, 0)
	for range 3 {
		h.srv.RaiseUA(r.unit, nil, nil, 0x2a, 0x09)
		h.fails(0x062a09, cdb10(0x28, 0, 0, 1), nil, 512)
		h.doAt(7<<48, tur, 0) // no such unit
		h.doAt(7<<48, rtpgCDB(), 64)
		h.fails(0x052400, cdb(0x00, 6, 5, 0x04), nil, 0) // NACA
	}
	r.gate.set(false, scsi.AccessUnavailable)
	h.fails(0x02040c, tur, nil, 0)
	h.fails(0x02040c, tur, nil, 0)
	r.gate.set(false, scsi.AccessTransitioning)
	for range 2 {
		if k := h.do(tur, nil, 0); k.Status != scsi.StatusBusy {
			t.Errorf("status %02x", k.Status)
		}
	}
	r.gate.set(false, scsi.AccessReady)
	if at := h.nexus.UsesPath(); at != 0 {
		t.Error("shown by refused commands at", at)
	}
	h.good(tur, nil, 0)
	if at := h.nexus.UsesPath(); at != 0 {
		t.Error("refused commands counted: the first good one showed it at", at)
	}
	if h.good(tur, nil, 0); h.nexus.UsesPath() == 0 {
		t.Error("not shown by the second good one")
	}
}

// A session's commands come from many goroutines: the time is set once.
func TestUseOfAPathIsShownOnce(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int64]bool{}
	for p := range 8 {
		wg.Go(func() {
			for i := range 200 {
				k := &scsi.Task{Nexus: h.nexus, Arrived: int64(p*1000 + i + 1)}
				if !h.srv.Submit(k) || k.Status != scsi.StatusGood {
					t.Errorf("status %02x", k.Status)
				}
				if at := h.nexus.UsesPath(); at != 0 {
					mu.Lock()
					seen[at] = true
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("shown at %v", seen)
	}
}
