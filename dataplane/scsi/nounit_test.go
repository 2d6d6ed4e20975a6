package scsi_test

import (
	"sync/atomic"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/single"
)

// standing is a cluster whose node has the access state that a test sets.
type standing struct {
	*single.Cluster
	access atomic.Uint32
}

func (s *standing) Access() scsi.Access { return scsi.Access(s.access.Load()) }

// Hosts give up a unit that a target does not know, so only a node that serves says that it does
// not know one: the tables of another may be older than the mapping.
func TestNoUnitIsSaidByWhoServes(t *testing.T) {
	r := newRig(t, nil)
	c := &standing{Cluster: r.cluster}
	r.servers[0] = scsi.NewServer(c, scsi.Config{TargetName: "iqn.2024-01.storage.gemel:test", Port: 1})
	h := r.login("iqn.host", 1)
	for access, want := range map[scsi.Access]uint32{scsi.AccessReady: 0x052500, scsi.AccessTransitioning: 0x02040a, scsi.AccessUnavailable: 0x02040c} {
		c.access.Store(uint32(access))
		for name, b := range map[string][]byte{
			"TEST UNIT READY": cdb(0x00, 6), "READ": cdb16(0x88, 0, 0, 1), "RTPG": cdb(0xa3, 12, 1, 0x0a, 9, 64), "an unknown command": cdb(0xff, 6),
		} {
			if s := h.doAt(7<<48, b, 64).sense(); s != want {
				t.Errorf("access %d: %s on no unit: %06x, want %06x", access, name, s, want)
			}
		}
		k := h.doAt(7<<48, cdb(0x03, 6, 4, 18), 18) // REQUEST SENSE has it as data
		if d := k.DataIn; len(d) < 14 || uint32(d[2])<<16|uint32(d[12])<<8|uint32(d[13]) != want {
			t.Errorf("access %d: REQUEST SENSE % x, want %06x", access, d, want)
		}
		if d := h.doAt(7<<48, cdb(0x12, 6, 4, 96), 96).DataIn; len(d) == 0 || d[0] != 0x7f {
			t.Errorf("access %d: INQUIRY % x", access, d)
		}
		if s := h.do(cdb(0x00, 6), nil, 0).sense(); s != 0 {
			t.Errorf("access %d of the node: the unit that is there says %06x", access, s)
		}
	}
}

// doAt runs a command that ends at once at another LUN than 0.
func (h *host) doAt(lun uint64, c []byte, in int) *command {
	h.t.Helper()
	k := &command{Task: scsi.Task{Nexus: h.nexus, LUN: lun, Expected: in, Read: in > 0, Alloc: func(n int) []byte { return make([]byte, n) }}}
	copy(k.CDB[:], c)
	if !h.srv.Submit(&k.Task) {
		h.t.Fatalf("% x at no unit is not answered at once", c)
	}
	return k
}
