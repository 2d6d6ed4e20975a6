package scsi_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func (h *host) tmf(f scsi.TMFunction, tag uint32) scsi.TMResponse {
	h.t.Helper()
	got := make(chan scsi.TMResponse, 2)
	h.srv.TaskManagement(scsi.TMF{Nexus: h.nexus, Function: f, Tag: tag}, func(r scsi.TMResponse) { got <- r })
	select {
	case r := <-got:
		return r
	case <-time.After(20 * time.Second):
		h.t.Fatal("the task management function hangs")
	}
	return 0
}

func (h *host) startWrite(tag uint32, lba uint64) *command {
	k := &command{done: make(chan struct{})}
	copy(k.CDB[:], cdb16(0x8a, 0, lba, 1))
	k.Nexus, k.Tag, k.DataOut, k.Expected, k.Write, k.Arrived = h.nexus, tag, pattern(512, 1), 512, true, bootTime()
	k.Alloc = func(n int) []byte { return make([]byte, n) }
	k.Done = func(*scsi.Task) { close(k.done) }
	if h.srv.Submit(&k.Task) {
		close(k.done)
	}
	return k
}

func TestAbortTask(t *testing.T) {
	r := newRig(t, nil)
	h := r.login("iqn.a", 1)
	r.gate.set(true, scsi.AccessReady)
	one, two := h.startWrite(1, 0), h.startWrite(2, 1)
	if got := h.tmf(scsi.TMFAbortTask, 3); got != scsi.TMFNoSuchTask {
		t.Errorf("an unknown task: %d", got)
	}
	if got := h.tmf(scsi.TMFAbortTask, 1); got != scsi.TMFComplete {
		t.Errorf("response %d", got)
	}
	if one.running() || !one.Aborted {
		t.Error("the task was not over, without a response, before the function was")
	}
	if !two.running() {
		t.Error("another task was aborted too")
	}
	if n := h.srv.InFlight(r.unit); n != 1 {
		t.Errorf("%d in flight", n)
	}
	r.gate.set(false, scsi.AccessReady)
	two.wait(t)
	if got := h.good(cdb16(0x88, 0, 0, 2), nil, 1024); !bytes.Equal(got, append(make([]byte, 512), pattern(512, 1)...)) {
		t.Error("the aborted write took effect, or the other did not")
	}
}

func TestLUNResetReachesEveryNexusOfBothPorts(t *testing.T) {
	r := newRig(t, nil)
	a, a2, b := r.login("iqn.a", 1), r.login("iqn.a2", 1), r.login("iqn.b", 2)
	r.gate.set(true, scsi.AccessReady)
	own, near, far := a.startWrite(1, 0), a2.startWrite(1, 1), b.startWrite(1, 2)
	if got := a.tmf(scsi.TMFLUNReset, 0); got != scsi.TMFComplete {
		t.Fatalf("response %d", got)
	}
	if own.running() || near.running() || far.running() {
		t.Fatal("a command outlived the reset")
	}
	if !own.Aborted {
		t.Error("the nexus that asked gets a response for its aborted command")
	}
	for _, k := range []*command{near, far} { // TAS = 1
		if k.Aborted || k.Status != scsi.StatusTaskAborted {
			t.Errorf("another nexus's command: aborted %v, status %02x", k.Aborted, k.Status)
		}
	}
	r.gate.set(false, scsi.AccessReady)
	for _, h := range []*host{a, a2, b} {
		if s := h.do(cdb(0x00, 6), nil, 0).sense(); s != 0x062903 {
			t.Errorf("told %06x", s)
		}
		h.good(cdb(0x00, 6), nil, 0)
	}
}

// A reset takes its time, for it is an entry of a log. What the host that has asked for it sends
// meanwhile is not what it gave up: it waits for a response, also when the reset meets it.
func TestResetAnswersWhatCameAfterItWasAskedFor(t *testing.T) {
	r := newRig(t, nil)
	a := r.login("iqn.a", 1)
	r.gate.set(true, scsi.AccessReady)
	later := a.startWrite(1, 0)
	done := make(chan struct{})
	a.srv.AbortUnitFor(r.unit, a.nexus.ID, func() { close(done) })
	<-done
	if later.running() || later.Aborted || later.Status != scsi.StatusTaskAborted {
		t.Errorf("running %v, aborted %v, status %02x", later.running(), later.Aborted, later.Status)
	}
	r.gate.set(false, scsi.AccessReady)
}

func TestTaskManagementThatIsRefused(t *testing.T) {
	h := newRig(t, nil).login("iqn.a", 1)
	if got := h.tmf(scsi.TMFTaskReassign, 0); got != scsi.TMFNoReassign {
		t.Error(got)
	}
	for _, f := range []scsi.TMFunction{0, scsi.TMFClearACA, 99} {
		if got := h.tmf(f, 0); got != scsi.TMFNotSupported {
			t.Errorf("function %d: %d", f, got)
		}
	}
	var got scsi.TMResponse = 255
	h.srv.TaskManagement(scsi.TMF{Nexus: h.nexus, Function: scsi.TMFLUNReset, LUN: 9 << 48}, func(r scsi.TMResponse) { got = r })
	if got != scsi.TMFNoSuchLUN {
		t.Error(got)
	}
}

func TestCloseNexusEndsItsCommands(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 1)
	r.gate.set(true, scsi.AccessReady)
	mine, other := a.startWrite(1, 0), b.startWrite(1, 1)
	done := make(chan struct{})
	a.srv.CloseNexus(a.nexus, func() { close(done) })
	<-done
	if mine.running() || !mine.Aborted || !other.running() {
		t.Error("not the commands of that nexus, and only those")
	}
	if k := a.startWrite(2, 0); k.running() || !k.Aborted {
		t.Error("a closed nexus takes commands")
	}
	r.gate.set(false, scsi.AccessReady)
	other.wait(t)
}

func TestUnmapFencing(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 2), r.login("iqn.b", 2)
	r.gate.set(true, scsi.AccessReady)
	mine, other := a.startWrite(1, 0), b.startWrite(1, 1)
	done := make(chan struct{})
	a.srv.AbortNexusUnit("iqn.a", r.unit, func() { close(done) })
	<-done
	if mine.running() || mine.Status != scsi.StatusTaskAborted || !other.running() {
		t.Error("not the commands of that host, and only those")
	}
}

func TestDrainWaitsAndKillsNothing(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.login("iqn.a", 1), r.login("iqn.b", 1)
	r.gate.set(true, scsi.AccessReady)
	mine, other := a.startWrite(1, 0), b.startWrite(1, 1)
	done := make(chan struct{})
	a.srv.Drain("iqn.a", r.unit, func() { close(done) })
	select {
	case <-done:
		t.Fatal("drained with a command in flight")
	default:
	}
	r.gate.set(false, scsi.AccessReady)
	<-done
	if mine.running() || mine.Status != scsi.StatusGood {
		t.Errorf("status %02x", mine.Status)
	}
	other.wait(t)
}

// Aborts that race with submission and completion: every command ends exactly once, and every
// waiter is notified.
func TestAbortsRaceWithEverything(t *testing.T) {
	r := newRig(t, nil)
	hosts := []*host{r.login("iqn.a", 1), r.login("iqn.b", 2)}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, h := range hosts {
		for j := range 3 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				for n := range 300 {
					c := cdb16(0x8a, 0, 0, 8) // all on one range, so that they queue
					out := make([]byte, 4096)
					switch rnd.IntN(3) {
					case 0:
						c = cdb16(0x8b, 0, 0, 8) // of several steps
					case 1:
						c, out = cdb16(0x88, 0, 0, 8), nil
					}
					k := h.start(c, out, 4096-len(out))
					k.Tag = uint32(n)
					k.wait(t)
				}
			})
		}
	}
	wg2 := sync.WaitGroup{}
	for _, h := range hosts {
		wg2.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					h.tmf(scsi.TMFAbortTaskSet, 0)
					h.tmf(scsi.TMFLUNReset, 0)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	wg2.Wait()
	if n := hosts[0].srv.InFlight(nil) + hosts[1].srv.InFlight(nil); n != 0 {
		t.Errorf("%d commands are left", n)
	}
}
