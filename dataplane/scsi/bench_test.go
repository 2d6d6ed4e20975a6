package scsi_test

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// BenchmarkRead is a READ(16) of 4 KiB from the page cache through device server, range lock and
// store.
func BenchmarkRead(b *testing.B) {
	h := newRig(b, nil).login("iqn.a", 1)
	buf := make([]byte, 4096)
	k := &scsi.Task{Nexus: h.nexus, Arrived: bootTime(), Expected: 4096, Read: true, Alloc: func(int) []byte { return buf }}
	k.Done = func(*scsi.Task) { b.Error("completed asynchronously") }
	copy(k.CDB[:], cdb16(0x88, 0, 64, 8))
	b.ReportAllocs()
	for b.Loop() {
		if !h.srv.Submit(k) || k.Status != 0 {
			b.Fatal("it failed")
		}
	}
}
