package node

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/pdu"
)

const (
	linuxHost = "iqn.1993-08.org.debian:01:0123456789ab"
	qemuHost  = "iqn.2008-11.org.linux-kvm:vm-1"
	otherHost = "iqn.2020-01.com.example:vm-2"
)

// answer is the status and the sense of a command: key, ASC and ASCQ in one number.
func answer(t *testing.T, p *testPair, s *initiator.Session, lun uint32, cdb []byte, in int) (status byte, sense uint32) {
	t.Helper()
	r, err := s.Execute(p.ctx, uint16(lun), cdb, nil, make([]byte, in))
	if err != nil {
		t.Fatal(err)
	}
	k := r.Sense()
	return r.Status, uint32(k.Key)<<16 | uint32(k.ASC)<<8 | uint32(k.ASCQ)
}

// A node that does not serve tells a host with several paths to use another one, and asks a host
// with one path to try again: QEMU gives NOT READY to its guest as an I/O error. What a person has
// set counts more than the name.
func TestHostWithOnePathIsAskedToTryAgain(t *testing.T) {
	tur, read := make([]byte, 6), []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}
	capacity := []byte{0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	p := newTestPair(t).startBoth()
	id, c := uuid.NewString(), p.client(0)
	if _, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 4 * mib, PreferredNode: "a"}); err != nil {
		t.Fatal(err)
	}
	luns := map[string]uint32{}
	admit := func(host, profile string) {
		t.Helper()
		m, err := c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host, Profile: profile})
		if err != nil {
			t.Fatal(err)
		}
		luns[host] = m.Lun
	}
	admit(linuxHost, "")
	admit(qemuHost, "Auto")
	admit(otherHost, "QEMU")
	const forced = "iqn.2008-11.org.linux-kvm:vm-3"
	admit(forced, "Linux")
	if _, err := c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: qemuHost, Profile: "Solaris"}); err == nil {
		t.Error("an unknown profile is taken")
	}
	p.inSync()
	p.end(1)
	p.until("node a serves alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
	p.end(0)
	p.start(1) // no member, and it does not reach the one that is; what was set is on its disk
	p.until("node b is no member", func() bool { return p.nodes[1].View().Phase == pair.Outside })
	for host, waits := range map[string]bool{linuxHost: false, qemuHost: true, otherHost: true, forced: false} {
		s, refused := p.enter(1, host)
		if waits {
			if refused != pdu.LoginUnavailable {
				t.Errorf("%s is not asked to log in again: %v", host, refused)
			}
			continue
		}
		if s == nil {
			t.Fatalf("%s: %v", host, refused)
		}
		next := func() (status byte, sense uint32) {
			for sense = 0x062a06; sense == 0x062a06; { // the node learned more of the pair after the host had logged in
				status, sense = answer(t, p, s, luns[host], tur, 0)
			}
			return status, sense
		}
		if _, sense := next(); sense != 0x062900 { // libiscsi repeats it for that
			t.Errorf("%s: the first command: %#06x", host, sense)
		}
		status, sense := next()
		if status != scsi.StatusCheckCondition || sense>>8 != 0x0204 {
			t.Errorf("%s: TEST UNIT READY: status %#02x, sense %#06x", host, status, sense)
		}
		for name, x := range map[string]struct {
			lun  uint32
			cdb  []byte
			want uint32
		}{"READ": {luns[host], read, 0x02040c}, "a LUN that it does not know": {99, capacity, 0x02040c}} {
			status, sense := answer(t, p, s, x.lun, x.cdb, 512)
			if status != scsi.StatusCheckCondition || sense != x.want {
				t.Errorf("%s: %s: status %#02x, sense %#06x", host, name, status, sense)
			}
		}
	}
	p.start(0)
	p.inSync()
	for _, host := range []string{linuxHost, qemuHost} {
		s, _ := p.enter(1, host)
		for status := byte(scsi.StatusCheckCondition); status != scsi.StatusGood; { // first come unit attentions
			var sense uint32
			if status, sense = answer(t, p, s, luns[host], tur, 0); status != scsi.StatusGood && sense>>16 != 6 {
				t.Fatalf("%s: TEST UNIT READY: status %#02x, sense %#06x", host, status, sense)
			}
		}
		if status, sense := answer(t, p, s, luns[host], read, 512); status != scsi.StatusGood {
			t.Errorf("%s: status %#02x, sense %#06x", host, status, sense)
		}
		if status, sense := answer(t, p, s, 99, read, 512); status != scsi.StatusCheckCondition || sense != 0x052500 {
			t.Errorf("%s: no such LUN: status %#02x, sense %#06x", host, status, sense)
		}
	}
}

// A pair with a node of 0.1.0 maps the host, and goes by its name.
func TestProfileIsNotSentToANodeThatDoesNotKnowIt(t *testing.T) {
	p := newTestPair(t)
	p.cfg[0].earlier = true
	p.startBoth()
	id, _ := p.lun(4*mib, "a")
	for i, host := range []string{otherHost, qemuHost} {
		if _, err := p.client(1).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host, Profile: []string{"QEMU", "Linux"}[i]}); err != nil {
			t.Fatal(err)
		}
		if got := p.nodes[1].SinglePath(host); got != (host == qemuHost) {
			t.Errorf("%s has one path: %v", host, got)
		}
	}
}

// A session that is there when its node leaves the pair: what a node of a failed disk cannot do is
// answered for another path, or for another try.
func TestLeavingNodeAsksAHostWithOnePathToTryAgain(t *testing.T) {
	p := newTestPair(t)
	var broken atomic.Bool
	p.cfg[1].Faults = func(op, path string, _, _ int64) error {
		if broken.Load() && op == store.FaultWrite && strings.HasSuffix(path, ".img") {
			return syscall.EIO
		}
		return nil
	}
	p.startBoth()
	id, _ := p.lun(4*mib, "b")
	sessions, luns := map[string]*initiator.Session{}, map[string]uint32{}
	for _, host := range []string{linuxHost, qemuHost} {
		m, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := p.enter(1, host)
		answer(t, p, s, m.Lun, make([]byte, 6), 0) // a unit attention
		sessions[host], luns[host] = s, m.Lun
	}
	broken.Store(true)
	said := map[string]map[uint32]int{linuxHost: {}, qemuHost: {}} // sense, or 0 with BUSY
	var mu sync.Mutex
	var wg sync.WaitGroup
	for host, s := range sessions {
		wg.Go(func() {
			for block := byte(0); ; block++ {
				r, err := s.Execute(p.ctx, uint16(luns[host]), []byte{0x2a, 0, 0, 0, 0, block, 0, 0, 1, 0}, make([]byte, 512), nil)
				if err != nil {
					return // the node has ended
				}
				k := r.Sense()
				mu.Lock()
				if r.Status != scsi.StatusGood && k.Key != 6 { // the change of the owner is an attention, which hosts repeat
					said[host][uint32(k.Key)<<16|uint32(k.ASC)<<8|uint32(k.ASCQ)]++
				}
				mu.Unlock()
			}
		})
	}
	p.leaves(1, "the store failed")
	wg.Wait()
	if said[linuxHost][0x02040c] == 0 {
		t.Errorf("this shows nothing: %v", said)
	}
	if len(said[qemuHost]) != 1 || said[qemuHost][0] == 0 {
		t.Errorf("sense: count %x", said[qemuHost])
	}
}
