package scsi_test

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// FuzzSubmit sends any CDB with any data: no panic, an answer, and one that keeps to its own
// limits.
func FuzzSubmit(f *testing.F) {
	h := newRig(f, nil).login("iqn.a", 1)
	for op := range 256 {
		f.Add(cdb(byte(op), 16, 1, 0x0a, 2, 0x3f, 7, 1, 8, 24, 13, 1), make([]byte, 512), uint32(512))
	}
	f.Add(prOut(7, 0), append(prParam(0, 1, 0), "\x45\x00\x00\x10iqn.b,i,0x800102"...), uint32(0))
	f.Add(cdb16(0x93, 8, 0, 1), make([]byte, 512), uint32(512))
	f.Add(cdb(0x42, 10, 8, 24), []byte{0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}, uint32(24))
	f.Add(cdb(0x15, 6, 1, 0x11, 4, 16), []byte{0, 0, 0, 0, 0x0a, 0x0a, 4, 0x10, 0, 0x40, 0, 0, 0xff, 0xff, 0, 0}, uint32(16))
	f.Fuzz(func(t *testing.T, c, out []byte, expected uint32) {
		k := &command{done: make(chan struct{})}
		copy(k.CDB[:], c)
		if len(out) > 1<<20 {
			return
		}
		k.Nexus, k.DataOut, k.Expected = h.nexus, out, int(expected)
		k.Arrived = bootTime()
		k.Alloc = func(n int) []byte {
			if n < 0 || n > 2*scsi.MaxTransfer {
				t.Errorf("% x asks for %d bytes", c, n)
			}
			return make([]byte, n)
		}
		k.Done = func(*scsi.Task) { close(k.done) }
		if h.srv.Submit(&k.Task) {
			close(k.done)
		}
		k.wait(t)
		switch k.Status {
		case scsi.StatusCheckCondition:
			if len(k.Sense) == 0 || len(k.DataIn) != 0 {
				t.Errorf("% x: sense % x, %d bytes of data", c, k.Sense, len(k.DataIn))
			}
		case scsi.StatusGood, scsi.StatusBusy, scsi.StatusReservationConflict:
		default:
			t.Errorf("% x: status %02x", c, k.Status)
		}
	})
}
