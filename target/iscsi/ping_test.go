package iscsi

import (
	"testing"

	"github.com/gemel-storage/gemel/target/iscsi/pdu"
	"github.com/gemel-storage/gemel/target/scsi"
)

// A sign of life is an answer to a ping that was sent after it was asked for: not other bytes, and not the answer to another.
func TestSignOfLife(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	h := c.read(0, 1)
	c.send(h, nil)
	if r := c.result(h.ITT()); r.status != 0 {
		t.Fatal(r.status)
	}
	cmds := b.dev.commands()
	life := &cmds[len(cmds)-1].Nexus.Life
	login := life.At()
	if login == 0 {
		t.Fatal("an initiator that has logged in lives")
	}
	first, second := make(chan struct{}), make(chan struct{})
	life.Ask(func() { close(first) })
	r, _ := c.recv()
	if r == nil || r.Op() != pdu.NopIn || r.TTT() == pdu.Reserved {
		t.Fatalf("% x", []byte(r))
	}
	life.Ask(func() { close(second) }) // the ping under way was sent before: another one follows
	answer := func(ttt uint32) {
		h := c.request(pdu.NopOut, pdu.Final, true)
		h.SetITT(pdu.Reserved)
		h.SetTTT(ttt)
		c.send(h, nil)
	}
	answer(r.TTT() + 7)
	h = c.read(0, 1)
	c.send(h, nil)
	if r := c.result(h.ITT()); r.status != 0 { // what was sent before has been taken by now
		t.Fatal(r.status)
	}
	select {
	case <-first:
		t.Fatal("another answer, or a command, counts as a sign of life")
	default:
	}
	answer(r.TTT())
	r, _ = c.recv()
	if r == nil || r.Op() != pdu.NopIn {
		t.Fatalf("% x", []byte(r))
	}
	<-first
	select {
	case <-second:
		t.Fatal("asked after the ping had been sent, and content with its answer")
	default:
	}
	answer(r.TTT())
	<-second
	if life.At() < login {
		t.Fatal("time goes back")
	}
}

func TestLifeOfNobody(t *testing.T) {
	var l scsi.Life
	l.Ask(func() { t.Error("nobody answers") })
	l.Answered(5)
	l.Answered(3)
	if l.At() != 5 {
		t.Fatal(l.At())
	}
}
