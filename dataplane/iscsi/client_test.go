package iscsi

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// client speaks raw PDUs.
type client struct {
	t       testing.TB
	nc      net.Conn
	params  pdu.Params
	cmdSN   uint32
	itt     uint32
	isid    byte
	statSN  uint32 // next expected
	check   bool   // verify StatSN
	answers pdu.Text
	tsih    uint16
	maxCmd  uint32
	digests bool // the full-feature phase has begun
	deaf    bool // to the target's pings, which a session that writes for long gets
}

func (b *bench) dial(t testing.TB) *client {
	t.Helper()
	nc, err := net.DialTimeout("tcp", b.addr, bound)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(2 * bound))
	return &client{t: t, nc: nc, cmdSN: 100, itt: 1, params: pdu.DefaultParams()}
}

// connect logs in without authentication, with the given operational keys.
func (b *bench) connect(t testing.TB, keys ...string) *client {
	t.Helper()
	c := b.dial(t)
	if st := c.login(keys...); st != pdu.LoginSuccess {
		t.Fatal("login:", st)
	}
	return c
}

func pairs(kv ...string) (t pdu.Text) {
	for i := 0; i+1 < len(kv); i += 2 {
		t.Add(kv[i], kv[i+1])
	}
	return t
}

// loginPDU sends one login request and returns the answer's header and text.
func (c *client) loginPDU(flags byte, tx pdu.Text) (pdu.BHS, pdu.Text) {
	c.t.Helper()
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(pdu.LoginReq, true)
	h.SetFlags(flags)
	h[pdu.OffISID], h[pdu.OffISID+5] = 0x80, c.isid
	h.PutU16(pdu.OffTSIH, c.tsih)
	h.SetITT(7)
	h.PutU16(pdu.OffCID, 3)
	h.PutU32(pdu.OffCmdSN, c.cmdSN)
	c.send(h, tx.Append(nil))
	r, data := c.recv()
	if r == nil {
		return nil, nil
	}
	if r.Op() != pdu.LoginResp {
		c.t.Fatalf("login answered by opcode %#x", r.Op())
	}
	out, err := pdu.ParseText(data)
	if err != nil {
		c.t.Fatal(err)
	}
	c.statSN = r.U32(pdu.OffStatSN) + 1
	c.maxCmd = r.U32(pdu.OffMaxCmdSN)
	return r, out
}

func status(r pdu.BHS) pdu.LoginStatus {
	if r == nil {
		return 0xffff // closed without an answer
	}
	return pdu.LoginStatus(r.U16(pdu.OffLoginStatus))
}

func (c *client) login(keys ...string) pdu.LoginStatus {
	c.t.Helper()
	tx := append(pairs("InitiatorName", testHost, "SessionType", "Normal", "TargetName", testTarget), pairs(keys...)...)
	r, out := c.loginPDU(pdu.LoginFlags(true, false, pdu.StageOperational, pdu.StageFullFeature), tx)
	c.answers = out
	if status(r) != pdu.LoginSuccess {
		return status(r)
	}
	own := pdu.DefaultParams()
	own.HeaderDigest, own.DataDigest, own.InitialR2T = true, true, false
	own.MaxBurst, own.FirstBurst = pdu.MaxDataSegment, pdu.MaxDataSegment
	for _, p := range out {
		if pdu.Known(p.Key) {
			if err := c.params.Accept(p.Key, p.Value, &own); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	for _, p := range pairs(keys...) {
		if p.Key == "MaxRecvDataSegmentLength" {
			c.params.MaxRecv, _ = pdu.ParseNumber(p.Value, 512, pdu.MaxDataSegment)
		}
	}
	c.digests, c.check = true, true
	return pdu.LoginSuccess
}

// send writes a PDU with what digests are in force.
func (c *client) send(h pdu.BHS, data []byte) {
	c.t.Helper()
	if _, err := c.nc.Write(c.encode(h, nil, data)); err != nil {
		c.t.Fatal("send:", err)
	}
}

func (c *client) encode(h pdu.BHS, ahs, data []byte) []byte {
	h.SetDataLen(len(data))
	h[4] = byte(len(ahs) / 4)
	b := append(append([]byte(nil), h...), ahs...)
	if c.digests && c.params.HeaderDigest {
		b = binary.LittleEndian.AppendUint32(b, pdu.Digest(b))
	}
	if len(data) > 0 {
		b = append(append(b, data...), make([]byte, pdu.Pad(len(data)))...)
		if c.digests && c.params.DataDigest {
			b = binary.LittleEndian.AppendUint32(b, pdu.DataDigest(data))
		}
	}
	return b
}

// recv reads a PDU and checks digests and StatSN; nil when the target closed.
func (c *client) recv() (pdu.BHS, []byte) {
	c.t.Helper()
	read := func(n int) []byte {
		b := make([]byte, n)
		if _, err := io.ReadFull(c.nc, b); err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				c.t.Fatal("no answer")
			}
			return nil
		}
		return b
	}
	h := pdu.BHS(read(pdu.HeaderLen))
	if h == nil {
		return nil, nil
	}
	if c.digests && c.params.HeaderDigest {
		if d := read(4); d == nil || pdu.GetDigest(d) != pdu.Digest(h) {
			c.t.Fatal("header digest")
		}
	}
	n := h.DataLen()
	if n > int(c.params.MaxRecv) {
		c.t.Fatalf("segment of %d bytes exceeds what we declared", n)
	}
	data := read(n + pdu.Pad(n))
	if n > 0 && c.digests && c.params.DataDigest {
		if d := read(4); pdu.GetDigest(d) != pdu.Digest(data) {
			c.t.Fatal("data digest")
		}
	}
	if c.check {
		c.maxCmd = h.U32(pdu.OffMaxCmdSN)
		hasStatus := h.Op() != pdu.R2T && (h.Op() != pdu.DataIn || h.Flags()&pdu.StatusBit != 0) && (h.Op() != pdu.NopIn || h.ITT() != pdu.Reserved)
		if hasStatus {
			if sn := h.U32(pdu.OffStatSN); sn != c.statSN {
				c.t.Fatalf("opcode %#x: StatSN %d, expected %d", h.Op(), sn, c.statSN)
			}
			c.statSN++
		}
	}
	if c.deaf && h.Op() == pdu.NopIn && h.ITT() == pdu.Reserved {
		return c.recv()
	}
	return h, data[:n]
}

// deaf returns a client to which the target's pings are nothing.
func deaf(c *client) *client {
	c.deaf = true
	return c
}

// closed checks that the target ends the connection, whatever it says before.
func (c *client) closed() {
	c.t.Helper()
	for {
		if h, _ := c.recv(); h == nil {
			return
		}
	}
}

// command makes a SCSI command for blocks of the disk.
func (c *client) command(op byte, flags byte, lba, blocks, edtl int) pdu.BHS {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(pdu.SCSICmd, false)
	h.SetFlags(flags)
	h.SetITT(c.itt)
	c.itt++
	h.PutU32(pdu.OffEDTL, uint32(edtl))
	h.PutU32(pdu.OffCmdSN, c.cmdSN)
	c.cmdSN++
	cdb := h[pdu.OffCDB:]
	cdb[0] = op
	binary.BigEndian.PutUint32(cdb[2:], uint32(lba))
	binary.BigEndian.PutUint16(cdb[7:], uint16(blocks))
	return h
}

func (c *client) read(lba, blocks int) pdu.BHS {
	return c.command(opRead, pdu.Final|pdu.ReadBit|1, lba, blocks, blocks*512)
}

func (c *client) request(op pdu.Opcode, flags byte, immediate bool) pdu.BHS {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(op, immediate)
	h.SetFlags(flags)
	h.SetITT(c.itt)
	c.itt++
	h.SetTTT(pdu.Reserved)
	h.PutU32(pdu.OffCmdSN, c.cmdSN)
	if !immediate {
		c.cmdSN++
	}
	return h
}

// ping makes sure that the session works and that everything before was handled.
func (c *client) ping() {
	c.t.Helper()
	h := c.request(pdu.NopOut, pdu.Final, true)
	c.send(h, []byte("hello"))
	r, data := c.recv()
	if r == nil || r.Op() != pdu.NopIn || r.ITT() != h.ITT() || string(data) != "hello" {
		c.t.Fatalf("ping answered by % x %q", []byte(r), data)
	}
}

// result collects the answer of one command.
type result struct {
	status   byte
	data     []byte
	sense    []byte
	flags    byte
	residual uint32
	pdus     int
	collapse bool
}

func (c *client) result(itt uint32) (r result) {
	c.t.Helper()
	for {
		h, data := c.recv()
		if h == nil {
			c.t.Fatal("connection closed in place of an answer")
		}
		if h.ITT() != itt {
			c.t.Fatalf("answer for tag %d (opcode %#x), expected %d", h.ITT(), h.Op(), itt)
		}
		switch h.Op() {
		case pdu.DataIn:
			if int(h.U32(pdu.OffBufferOff)) != len(r.data) || int(h.U32(pdu.OffDataSN)) != r.pdus {
				c.t.Fatal("Data-In out of order")
			}
			r.data = append(r.data, data...)
			r.pdus++
			if h.Flags()&pdu.StatusBit == 0 {
				continue
			}
			r.collapse = true
		case pdu.SCSIResp:
			if len(data) > 0 {
				n := int(data[0])<<8 | int(data[1])
				r.sense = data[2 : 2+n]
			}
			if int(h.U32(pdu.OffExpDataSNResp)) < r.pdus {
				c.t.Fatal("ExpDataSN")
			}
		default:
			c.t.Fatalf("opcode %#x in an answer", h.Op())
		}
		r.status, r.flags, r.residual = h[pdu.OffSCSIStatus], h.Flags(), h.U32(pdu.OffResidual)
		return r
	}
}
