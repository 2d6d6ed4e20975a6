package iscsi

import (
	"testing"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// Everything an initiator must not send costs it the connection, and no other session anything.
func TestMalformedPDUsEndTheirConnectionOnly(t *testing.T) {
	b := serve(t, nil, nil)
	good := b.dial(t)
	good.isid = 77
	if st := good.login(); st != 0 {
		t.Fatal(st)
	}
	write := func(c *client, flags byte, edtl int) pdu.BHS {
		return c.command(opWrite, flags|pdu.WriteBit, 0, edtl/512, edtl)
	}
	r2t := func(t *testing.T, c *client, edtl int) (pdu.BHS, pdu.BHS) {
		h := write(c, pdu.Final, edtl)
		c.send(h, nil)
		r, _ := c.recv()
		if r.Op() != pdu.R2T {
			t.Fatalf("opcode %#x", r.Op())
		}
		return h, r
	}
	unsolicited := []string{"InitialR2T", "No", "FirstBurstLength", "4096"}
	for _, x := range []struct {
		name string
		keys []string
		do   func(t *testing.T, c *client)
	}{
		{"unknown opcode", nil, func(t *testing.T, c *client) { c.send(c.request(0x1c, pdu.Final, true), nil) }},
		{"target opcode", nil, func(t *testing.T, c *client) { c.send(c.request(pdu.SCSIResp, pdu.Final, true), nil) }},
		{"login after login", nil, func(t *testing.T, c *client) { c.send(c.request(pdu.LoginReq, 0x87, true), nil) }},
		{"segment too long", nil, func(t *testing.T, c *client) {
			h := c.request(pdu.NopOut, pdu.Final, true)
			h.SetDataLen(1 << 20)
			_, _ = c.nc.Write(h)
		}},
		{"reserved tag", nil, func(t *testing.T, c *client) {
			h := c.read(0, 1)
			h.SetITT(pdu.Reserved)
			c.send(h, nil)
		}},
		{"skipped CmdSN", nil, func(t *testing.T, c *client) { c.cmdSN += 2; c.send(c.read(0, 1), nil) }},
		{"read without final", nil, func(t *testing.T, c *client) { c.send(c.command(opRead, pdu.ReadBit, 0, 1, 512), nil) }},
		{"data with a read", nil, func(t *testing.T, c *client) { c.send(c.read(0, 1), make([]byte, 512)) }},
		{"immediate data not negotiated", []string{"ImmediateData", "No"}, func(t *testing.T, c *client) { c.send(write(c, pdu.Final, 512), make([]byte, 512)) }},
		{"immediate data too long", []string{"FirstBurstLength", "512"}, func(t *testing.T, c *client) { c.send(write(c, pdu.Final, 1024), make([]byte, 1024)) }},
		{"immediate data beyond the command", nil, func(t *testing.T, c *client) { c.send(write(c, pdu.Final, 512), make([]byte, 1024)) }},
		{"unsolicited data not negotiated", nil, func(t *testing.T, c *client) { c.send(write(c, 0, 1024), nil) }},
		{"AHS too short", nil, func(t *testing.T, c *client) { _, _ = c.nc.Write(c.encode(c.read(0, 1), []byte{0, 9, 1, 0}, nil)) }},
		{"AHS of no length", nil, func(t *testing.T, c *client) { _, _ = c.nc.Write(c.encode(c.read(0, 1), []byte{0, 0, 1, 0}, nil)) }},
		{"unsolicited beyond FirstBurst", unsolicited, func(t *testing.T, c *client) {
			h := write(c, 0, 8192)
			c.send(h, nil)
			c.send(c.dataPDU(h.ITT(), pdu.Reserved, 0, 0, true), make([]byte, 4608))
		}},
		{"unsolicited with a tag", unsolicited, func(t *testing.T, c *client) {
			h := write(c, 0, 8192)
			c.send(h, nil)
			c.send(c.dataPDU(h.ITT(), 5, 0, 0, true), make([]byte, 512))
		}},
		{"Data-Out nobody asked for", unsolicited, func(t *testing.T, c *client) {
			h := write(c, 0, 8192)
			c.send(h, nil)
			c.send(c.dataPDU(h.ITT(), pdu.Reserved, 0, 0, true), make([]byte, 512))
			r, _ := c.recv()
			c.send(c.dataPDU(h.ITT(), pdu.Reserved, 0, int(r.U32(pdu.OffBufferOff)), true), make([]byte, 512))
		}},
		{"wrong offset", nil, func(t *testing.T, c *client) {
			h, r := r2t(t, c, 1024)
			c.send(c.dataPDU(h.ITT(), r.TTT(), 0, 512, true), make([]byte, 512))
		}},
		{"wrong TTT", nil, func(t *testing.T, c *client) {
			h, r := r2t(t, c, 1024)
			c.send(c.dataPDU(h.ITT(), r.TTT()+1, 0, 0, true), make([]byte, 1024))
		}},
		{"beyond the R2T", nil, func(t *testing.T, c *client) {
			h, r := r2t(t, c, 1024)
			c.send(c.dataPDU(h.ITT(), r.TTT(), 0, 0, true), make([]byte, 1536))
		}},
		{"final too early", nil, func(t *testing.T, c *client) {
			h, r := r2t(t, c, 1024)
			c.send(c.dataPDU(h.ITT(), r.TTT(), 0, 0, true), make([]byte, 512))
		}},
		{"final missing", nil, func(t *testing.T, c *client) {
			h, r := r2t(t, c, 1024)
			c.send(c.dataPDU(h.ITT(), r.TTT(), 0, 0, false), make([]byte, 1024))
		}},
		{"NOP-Out that is not immediate without a tag", nil, func(t *testing.T, c *client) {
			h := c.request(pdu.NopOut, pdu.Final, false)
			h.SetITT(pdu.Reserved)
			c.send(h, nil)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			before := len(b.dev.commands())
			c := b.connect(t, x.keys...)
			c.t = t
			x.do(t, c)
			c.closed()
			if len(b.dev.commands()) != before {
				t.Error("something was executed")
			}
			good.ping()
		})
	}
	eventually(t, "one session left", func() bool { return len(b.Sessions()) == 1 })
}

// What is answered by a Reject leaves the session as it was.
func TestRejectKeepsTheSession(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	for _, x := range []struct {
		h      pdu.BHS
		data   string
		reason byte
	}{
		{c.request(pdu.SNACK, pdu.Final, true), "", pdu.RejectSNACK},
		{c.request(pdu.LogoutReq, pdu.Final|9, true), "", pdu.RejectInvalidField},
		{c.request(pdu.TextReq, pdu.Final, true), "no NUL", pdu.RejectProtocolError},
		{c.request(pdu.TextReq, pdu.Final|pdu.Continue, true), "A=1\x00", pdu.RejectProtocolError},
	} {
		c.send(x.h, []byte(x.data))
		r, data := c.recv()
		if r.Op() != pdu.Reject || r[pdu.OffResponse] != x.reason || pdu.BHS(data).ITT() != x.h.ITT() {
			t.Errorf("opcode %#x reason %d, want %d", r.Op(), r[pdu.OffResponse], x.reason)
		}
	}
	c.ping()
}

func TestGarbageBeforeLogin(t *testing.T) {
	b := serve(t, nil, nil)
	for _, in := range []string{"GET / HTTP/1.0\r\n\r\n----------------------------------", string(make([]byte, 48)),
		"\x43\x87\xff\xff\xff\xff\xff\xff" + string(make([]byte, 40)), "\x43"} {
		c := b.dial(t)
		if _, err := c.nc.Write([]byte(in)); err != nil {
			t.Fatal(err)
		}
		if len(in) < 48 {
			_ = c.nc.Close()
			continue
		}
		c.closed()
	}
	b.connect(t).ping()
}
