package iscsi

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// write sends a write of data as the session's parameters permit and returns its result.
func (c *client) write(lba int, data []byte, edtl int) result {
	c.t.Helper()
	unsolicited := 0
	if !c.params.InitialR2T {
		unsolicited = min(int(c.params.FirstBurst), len(data))
	}
	imm := 0
	if c.params.ImmediateData {
		imm = min(int(c.params.FirstBurst), 8192, len(data))
	}
	unsolicited = max(unsolicited, imm)
	flags := byte(pdu.WriteBit | 1)
	if imm == unsolicited {
		flags |= pdu.Final
	}
	h := c.command(opWrite, flags, lba, len(data)/512, edtl)
	c.send(h, data[:imm])
	sent := imm
	c.dataOut(h.ITT(), pdu.Reserved, data, &sent, unsolicited)
	for sent < len(data) {
		r, _ := c.recv()
		if r == nil || r.Op() != pdu.R2T || r.ITT() != h.ITT() || int(r.U32(pdu.OffBufferOff)) != sent {
			c.t.Fatalf("expected R2T at %d: % x", sent, []byte(r))
		}
		n := int(r.U32(pdu.OffDesired))
		if n > int(c.params.MaxBurst) {
			c.t.Fatalf("R2T of %d exceeds MaxBurstLength", n)
		}
		c.dataOut(h.ITT(), r.TTT(), data, &sent, sent+n)
	}
	return c.result(h.ITT())
}

func (c *client) dataOut(itt, ttt uint32, data []byte, sent *int, end int) {
	for sn := 0; *sent < end; sn++ {
		n := min(8192, end-*sent)
		h := c.dataPDU(itt, ttt, sn, *sent, *sent+n == end)
		c.send(h, data[*sent:*sent+n])
		*sent += n
	}
}

func (c *client) dataPDU(itt, ttt uint32, sn, off int, final bool) pdu.BHS {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(pdu.DataOut, false)
	if final {
		h.SetFlags(pdu.Final)
	}
	h.SetITT(itt)
	h.SetTTT(ttt)
	h.PutU32(pdu.OffDataSN, uint32(sn))
	h.PutU32(pdu.OffBufferOff, uint32(off))
	return h
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>9) ^ seed
	}
	return b
}

// Every way that data can take, with and without digests, and memory so scarce that commands must
// wait for it.
func TestWritePaths(t *testing.T) {
	b := serve(t, func(c *Config) {
		c.Limits.Transfer, c.Limits.SessionMemory, c.Limits.MaxBurst, c.Limits.FirstBurst = 1<<20, 1<<20, 256<<10, 64<<10
	}, nil)
	for _, digest := range []string{"None", "CRC32C"} {
		for _, r2t := range []string{"Yes", "No"} {
			for _, imm := range []string{"Yes", "No"} {
				t.Run(fmt.Sprintf("digest=%s,InitialR2T=%s,ImmediateData=%s", digest, r2t, imm), func(t *testing.T) {
					c := b.connect(t, "HeaderDigest", digest, "DataDigest", digest, "InitialR2T", r2t, "ImmediateData", imm,
						"FirstBurstLength", "65536", "MaxBurstLength", "131072")
					for i, size := range []int{512, 4096, 8192, 65536, 66048, 700 << 10} {
						data := pattern(size, byte(i))
						if r := c.write(0, data, size); r.status != 0 || r.flags&^pdu.Final != 0 {
							t.Fatalf("%d bytes: %+v", size, r)
						}
						h := c.read(0, size/512)
						c.send(h, nil)
						if r := c.result(h.ITT()); !bytes.Equal(r.data, data) || !r.collapse || r.status != 0 {
							t.Fatalf("%d bytes read back wrong: status %d, %d bytes", size, r.status, len(r.data))
						}
					}
				})
			}
		}
	}
}

// More writes at once than there is memory for: all are served, in turn.
func TestWriteMemory(t *testing.T) {
	b := serve(t, func(c *Config) {
		c.Limits.Transfer, c.Limits.SessionMemory, c.Limits.FirstBurst = 256<<10, 256<<10, 8192
	}, nil)
	c := b.connect(t, "InitialR2T", "Yes", "ImmediateData", "Yes", "MaxBurstLength", "262144")
	const size = 192 << 10
	data := pattern(size, 1)
	open := map[uint32]int{}
	for i := range 8 {
		h := c.command(opWrite, pdu.Final|pdu.WriteBit|1, i*size/512, size/512, size)
		imm := 4096
		c.send(h, data[:imm])
		open[h.ITT()] = imm
	}
	for len(open) > 0 {
		h, _ := c.recv()
		switch h.Op() {
		case pdu.R2T:
			sent := int(h.U32(pdu.OffBufferOff))
			if sent != open[h.ITT()] {
				t.Fatal("R2T offset")
			}
			c.dataOut(h.ITT(), h.TTT(), data, &sent, sent+int(h.U32(pdu.OffDesired)))
			open[h.ITT()] = sent
		case pdu.SCSIResp:
			if h[pdu.OffSCSIStatus] != 0 || open[h.ITT()] != size {
				t.Fatal("wrong end")
			}
			delete(open, h.ITT())
		}
	}
	b.dev.mu.Lock()
	defer b.dev.mu.Unlock()
	for i := range 8 {
		if !bytes.Equal(b.dev.disk[i*size:(i+1)*size], data) {
			t.Fatalf("write %d is not on the disk", i)
		}
	}
}

// Writes that wait for data must not keep a read from its memory: it is the reader that brings
// their data.
func TestReadBesideGathering(t *testing.T) {
	b := serve(t, func(c *Config) { c.Limits.Transfer, c.Limits.SessionMemory = 1<<20, 1<<20 }, nil)
	c := b.connect(t, "InitialR2T", "Yes", "ImmediateData", "No")
	c.send(c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 2, 1024), nil)
	if r, _ := c.recv(); r.Op() != pdu.R2T {
		t.Fatalf("opcode %#x", r.Op())
	}
	h := c.read(0, 2048)
	c.send(h, nil)
	if r := c.result(h.ITT()); len(r.data) != 1<<20 {
		t.Fatalf("%d bytes", len(r.data))
	}
}

func TestReadSegments(t *testing.T) {
	b := serve(t, nil, nil)
	for _, op := range []byte{opRead, opAsync} {
		c := b.connect(t, "MaxRecvDataSegmentLength", "4096", "MaxBurstLength", "16384")
		h := c.command(op, pdu.Final|pdu.ReadBit, 3, 80, 80*512)
		c.send(h, nil)
		var got []byte
		burst := 0
		for done := false; !done; {
			r, data := c.recv()
			if r.Op() != pdu.DataIn {
				t.Fatalf("opcode %#x", r.Op())
			}
			got = append(got, data...)
			burst += len(data)
			done = r.Flags()&pdu.StatusBit != 0
			if final := r.Flags()&pdu.Final != 0; final != (burst == 16384 || done) {
				t.Fatalf("final %v after %d bytes of a sequence", final, burst)
			} else if final {
				burst = 0
			}
		}
		if !bytes.Equal(got, b.dev.disk[3*512:83*512]) {
			t.Fatal("wrong data")
		}
	}
}

func TestResidualCountsOfResponses(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	for _, x := range []struct {
		blocks, edtl int
		flag         byte
		residual     uint32
		data         int
	}{
		{2, 1024, 0, 0, 1024}, {2, 512, pdu.OverflowO, 512, 512}, {2, 4096, pdu.UnderflowU, 3072, 1024}, {0, 512, pdu.UnderflowU, 512, 0},
		{2, 0, pdu.OverflowO, 1024, 0},
	} {
		h := c.command(opRead, pdu.Final|pdu.ReadBit, 0, x.blocks, x.edtl)
		c.send(h, nil)
		r := c.result(h.ITT())
		if r.flags&(pdu.OverflowO|pdu.UnderflowU) != x.flag || r.residual != x.residual || len(r.data) != x.data || r.status != 0 {
			t.Errorf("%+v: %+v", x, r)
		}
	}
	r := c.write(0, pattern(1024, 0), 1024)
	if r.status != 0 || r.residual != 0 {
		t.Errorf("%+v", r)
	}
	// The CDB wants less than the initiator has: it is asked for all of it, and the rest is the
	// residual.
	h := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 1, 1024)
	c.send(h, pattern(1024, 0))
	if r := c.result(h.ITT()); r.flags&pdu.UnderflowU == 0 || r.residual != 512 {
		t.Errorf("%+v", r)
	}
	h = c.command(opFail, pdu.Final|pdu.ReadBit, 0, 0, 512)
	c.send(h, nil)
	if r := c.result(h.ITT()); r.status != scsi.StatusCheckCondition || len(r.sense) != 18 || r.sense[12] != 0x20 || r.residual != 512 {
		t.Errorf("%+v", r)
	}
}

func TestExtendedCDB(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t, "HeaderDigest", "CRC32C")
	h := c.read(0, 1)
	long := []byte("sixteen and more")
	ahs := append([]byte{0, byte(1 + len(long)), pdu.AHSExtendedCDB, 0}, long...)
	if _, err := c.nc.Write(c.encode(h, ahs, nil)); err != nil {
		t.Fatal(err)
	}
	if r := c.result(h.ITT()); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	if got := b.dev.commands(); len(got) != 1 || string(got[0].LongCDB) != string(long) || got[0].Tag != h.ITT() {
		t.Fatalf("%+v", got)
	}
}

// A wrong DataSN costs the command, and not the connection.
func TestDataSN(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t, "InitialR2T", "Yes", "ImmediateData", "No")
	for _, sns := range [][2]int{{0, 0}, {1, 0}, {27, 28}, {-1, 0}} {
		h := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 2, 1024)
		c.send(h, nil)
		r, _ := c.recv()
		c.send(c.dataPDU(h.ITT(), r.TTT(), sns[0], 0, false), make([]byte, 512))
		c.send(c.dataPDU(h.ITT(), r.TTT(), sns[1], 512, true), make([]byte, 512))
		if r := c.result(h.ITT()); r.status != scsi.StatusCheckCondition || r.sense[2] != 0xb {
			t.Errorf("DataSN %v: %+v", sns, r)
		}
	}
	if len(b.dev.commands()) != 0 {
		t.Error("executed")
	}
	c.ping()
}

// A wrong data digest costs the command, a wrong header digest the connection.
func TestDigestErrors(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t, "HeaderDigest", "CRC32C", "DataDigest", "CRC32C", "InitialR2T", "No")
	spoil := func(p []byte) {
		p[len(p)-1] ^= 1
		if _, err := c.nc.Write(p); err != nil {
			t.Fatal(err)
		}
		if r, data := c.recv(); r.Op() != pdu.Reject || r[pdu.OffResponse] != pdu.RejectDataDigest || len(data) != pdu.HeaderLen {
			t.Fatalf("not rejected: % x", []byte(r))
		}
	}
	h := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, 2, 1024)
	spoil(c.encode(h, nil, pattern(1024, 1)))
	if r := c.result(h.ITT()); r.status != scsi.StatusCheckCondition || r.sense[2] != 0xb || r.sense[12] != 0x47 || r.sense[13] != 5 {
		t.Fatalf("%+v", r)
	}
	// In the middle of an unsolicited sequence: the rest is taken before the command ends.
	h = c.command(opWrite, pdu.WriteBit, 0, 4, 2048)
	c.send(h, pattern(512, 1))
	spoil(c.encode(c.dataPDU(h.ITT(), pdu.Reserved, 0, 512, false), nil, pattern(512, 2)))
	c.send(c.dataPDU(h.ITT(), pdu.Reserved, 1, 1024, true), pattern(1024, 2))
	if r := c.result(h.ITT()); r.status != scsi.StatusCheckCondition {
		t.Fatalf("%+v", r)
	}
	spoil(c.encode(c.request(pdu.NopOut, pdu.Final, true), nil, []byte("ping")))
	c.ping()
	if len(b.dev.commands()) != 0 {
		t.Fatal("a command with damaged data was executed")
	}
	p := c.encode(c.read(0, 1), nil, nil)
	p[pdu.HeaderLen] ^= 1
	if _, err := c.nc.Write(p); err != nil {
		t.Fatal(err)
	}
	c.closed()
	if n := b.Stats().DigestErrors.Load(); n != 4 {
		t.Errorf("%d digest errors counted", n)
	}
}
