package iscsi

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// A sign of life is an answer to a ping that was sent after it was asked for: not other bytes, and
// not the answer to another.
func TestSignOfLife(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	h := c.read(0, 1)
	c.send(h, nil)
	if r := c.result(h.ITT()); r.status != 0 {
		t.Fatal(r.status)
	}
	cmds := b.dev.commands()
	life := &cmds[len(cmds)-1].Nexus.Liveness
	login := life.At()
	if login == 0 {
		t.Fatal("an initiator that has logged in lives")
	}
	first, second := make(chan struct{}), make(chan struct{})
	ping := func() uint32 {
		t.Helper()
		r, _ := c.recv()
		if r == nil || r.Op() != pdu.NopIn || r.TTT() == pdu.Reserved {
			t.Fatalf("% x", []byte(r))
		}
		return r.TTT()
	}
	life.Ask(func() { close(first) })
	one := ping()
	life.Ask(func() { close(second) }) // the ping under way was sent before: another one follows at once
	two := ping()
	answer := func(ttt uint32) {
		h := c.request(pdu.NopOut, pdu.Final, true)
		h.SetITT(pdu.Reserved)
		h.SetTTT(ttt)
		c.send(h, nil)
	}
	answer(two + 7)
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
	answer(one)
	<-first
	select {
	case <-second:
		t.Fatal("asked after the ping had been sent, and content with its answer")
	default:
	}
	answer(two)
	<-second
	if life.At() < login {
		t.Fatal("time goes back")
	}
}

// Over a long round trip many pings are under way, but not any number; an answer counts for those
// before it.
func TestPingsUnderWay(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	h := c.read(0, 1)
	c.send(h, nil)
	c.result(h.ITT())
	cmds := b.dev.commands()
	life := &cmds[len(cmds)-1].Nexus.Liveness
	done := make(chan int, 2*maxPings)
	for i := range maxPings + 3 {
		life.Ask(func() { done <- i })
	}
	var tags []uint32
	for range maxPings {
		r, _ := c.recv()
		if r.Op() != pdu.NopIn || r.TTT() == pdu.Reserved {
			t.Fatalf("% x", []byte(r))
		}
		tags = append(tags, r.TTT())
	}
	c.ping() // nothing else is under way
	answer := func(ttt uint32) {
		h := c.request(pdu.NopOut, pdu.Final, true)
		h.SetITT(pdu.Reserved)
		h.SetTTT(ttt)
		c.send(h, nil)
	}
	answer(tags[4])
	for want := range 5 {
		if i := <-done; i != want {
			t.Fatalf("%d before %d", i, want)
		}
	}
	r, _ := c.recv() // what was asked beyond the limit goes with one ping
	if r.Op() != pdu.NopIn || r.TTT() == pdu.Reserved {
		t.Fatalf("% x", []byte(r))
	}
	answer(r.TTT())
	for want := 5; want < maxPings+3; want++ {
		if i := <-done; i != want {
			t.Fatalf("%d before %d", i, want)
		}
	}
	answer(tags[7]) // late, and counts for nothing any more
	c.ping()
	if len(done) > 0 {
		t.Error("told twice")
	}
}

// A session that writes is pinged again and again, also while the answer to the first ping is still
// on its way.
func TestRefreshOverALongRoundTrip(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	for pings := 0; pings < 3; {
		h := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 1, 512)
		c.send(h, pattern(512, 1))
		for answered := false; !answered; {
			r, _ := c.recv()
			switch {
			case r == nil:
				t.Fatal("the connection is closed")
			case r.Op() == pdu.NopIn && r.ITT() == pdu.Reserved:
				pings++
			case r.Op() == pdu.SCSIResp && r.ITT() == h.ITT():
				answered = true
			default:
				t.Fatalf("% x", []byte(r))
			}
		}
	}
}

func TestLifeOfNobody(t *testing.T) {
	var l scsi.Liveness
	l.Ask(func() { t.Error("nobody answers") })
	l.Answered(5)
	l.Answered(3)
	if l.At() != 5 {
		t.Fatal(l.At())
	}
}

// When this node may have been the silent one, initiators that answer a ping keep their sessions,
// and those that do not lose them before they give them up themselves.
func TestSilentInitiatorsAreDropped(t *testing.T) {
	b := serve(t, func(c *Config) { c.MaxAge = 200 * time.Millisecond }, nil)
	lives, silent := b.connect(t), b.dial(t)
	silent.isid = 1
	if st := silent.login(); st != pdu.LoginSuccess {
		t.Fatal(st)
	}
	for range 2 { // the second time nothing is left of the first
		b.DropSilent("a test")
		r, _ := lives.recv()
		if r == nil || r.Op() != pdu.NopIn || r.TTT() == pdu.Reserved {
			t.Fatalf("% x", []byte(r))
		}
		h := lives.request(pdu.NopOut, pdu.Final, true)
		h.SetITT(pdu.Reserved)
		h.SetTTT(r.TTT())
		lives.send(h, nil)
		if silent != nil {
			if r, _ := silent.recv(); r == nil || r.Op() != pdu.NopIn {
				t.Fatalf("% x", []byte(r))
			}
			silent.closed()
			silent = nil
		}
		until := time.Now().Add(3 * 200 * time.Millisecond)
		for time.Now().Before(until) { // the session of the other one is kept, and works
			h := lives.read(0, 1)
			lives.send(h, nil)
			if r := lives.result(h.ITT()); r.status != 0 {
				t.Fatal(r.status)
			}
		}
	}
}
