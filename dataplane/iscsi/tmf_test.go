package iscsi

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

func (c *client) tmf(function byte, ref uint32, lun uint64) pdu.BHS {
	h := c.request(pdu.TMFReq, pdu.Final|function, true)
	h.PutU32(pdu.OffRefTag, ref)
	h.SetLUN(lun)
	return h
}

func (c *client) tmfAnswer(h pdu.BHS) byte {
	c.t.Helper()
	r, _ := c.recv()
	if r == nil || r.Op() != pdu.TMFResp || r.ITT() != h.ITT() {
		c.t.Fatalf("expected a TMF response: % x", []byte(r))
	}
	return r[pdu.OffResponse]
}

func TestTaskManagement(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t, "InitialR2T", "Yes", "ImmediateData", "No")
	held := c.hold()
	c.send(held, nil)
	eventually(t, "a held command", func() bool { return b.dev.holding() == 1 })
	h := c.tmf(pdu.TMFAbortTask, held.ITT(), 0)
	c.send(h, nil)
	if r := c.tmfAnswer(h); r != pdu.TMFComplete || b.dev.holding() != 0 {
		t.Fatal("abort task:", r)
	}
	// No such task, with a number long used, and with one that is skipped for good.
	h = c.tmf(pdu.TMFAbortTask, 0x9999, 0)
	h.PutU32(pdu.OffRefCmdSN, c.cmdSN-1)
	c.send(h, nil)
	if r := c.tmfAnswer(h); r != pdu.TMFNoTask {
		t.Fatal("abort of nothing:", r)
	}
	// Commands that wait for data: the transport knows them, the Device does not.
	for _, f := range []byte{pdu.TMFAbortTask, pdu.TMFAbortTaskSet, pdu.TMFLogicalUnitReset, pdu.TMFTargetWarmReset} {
		before := len(b.dev.commands())
		w := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 2, 1024)
		c.send(w, nil)
		r2t, _ := c.recv()
		if r2t.Op() != pdu.R2T {
			t.Fatalf("opcode %#x", r2t.Op())
		}
		h = c.tmf(f, w.ITT(), 0)
		c.send(h, nil)
		if r := c.tmfAnswer(h); r != pdu.TMFComplete {
			t.Fatalf("function %d: %d", f, r)
		}
		sent := 0
		c.dataOut(w.ITT(), r2t.TTT(), pattern(1024, 9), &sent, 1024) // late data is thrown away
		c.ping()
		if len(b.dev.commands()) != before {
			t.Fatalf("function %d: the write was executed", f)
		}
	}
	for f, want := range map[byte]byte{pdu.TMFTaskReassign: pdu.TMFNoReassign, pdu.TMFClearACA: pdu.TMFNotSupported, 99: pdu.TMFNotSupported} {
		h = c.tmf(f, 0, 0)
		c.send(h, nil)
		if r := c.tmfAnswer(h); r != want {
			t.Errorf("function %d: %d, want %d", f, r, want)
		}
	}
	if n := b.Sessions()[0].InFlight; n != 0 {
		t.Errorf("%d commands in flight", n)
	}
}

// A function that ends otherwise than it was asked to has an initiator wait for the commands that
// it was about: those whose data has not all come are answered, and not executed. (The device of
// these tests does not know CLEAR TASK SET.)
func TestFunctionThatFailsAnswersWhatItDropped(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t, "InitialR2T", "Yes", "ImmediateData", "No")
	w := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 2, 1024)
	c.send(w, nil)
	if r2t, _ := c.recv(); r2t.Op() != pdu.R2T {
		t.Fatalf("opcode %#x", r2t.Op())
	}
	h := c.tmf(pdu.TMFClearTaskSet, 0, 0)
	c.send(h, nil)
	if r := c.result(w.ITT()); r.status != scsi.StatusTaskAborted || len(b.dev.commands()) != 0 {
		t.Fatalf("%+v", r)
	}
	if r := c.tmfAnswer(h); r != pdu.TMFNotSupported {
		t.Fatal("clear task set:", r)
	}
	if r := c.write(0, pattern(1024, 1), 1024); r.status != 0 {
		t.Fatalf("%+v", r)
	}
}

// A reset by somebody else reaches commands that wait for data: they end with TASK ABORTED and are
// not executed.
func TestAbortGathering(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t, "InitialR2T", "Yes", "ImmediateData", "No")
	w := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 2, 1024)
	c.send(w, nil)
	r2t, _ := c.recv()
	b.AbortGathering(func(initiator string, lun uint64) bool { return initiator == testHost && lun == 0 })
	sent := 0
	c.dataOut(w.ITT(), r2t.TTT(), pattern(1024, 9), &sent, 1024)
	if r := c.result(w.ITT()); r.status != scsi.StatusTaskAborted || len(b.dev.commands()) != 0 {
		t.Fatalf("%+v", r)
	}
	if r := c.write(0, pattern(1024, 1), 1024); r.status != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestColdReset(t *testing.T) {
	b := serve(t, nil, nil)
	one, two := b.connect(t), b.dial(t)
	two.isid = 1
	two.login()
	one.send(one.tmf(pdu.TMFTargetColdReset, 0, 0), nil)
	one.closed()
	two.closed()
}
