package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// guest is a session that is made of PDUs: it can do what this project's initiator does not, such
// as announce a write and send a part of its data. What it reads is thrown away, so that a crowd of
// guests needs no memory here. It belongs to one goroutine.
type guest struct {
	crowd           *gathering
	conn            net.Conn
	params          pdu.Params
	lun             uint64
	cmdSN, maxCmdSN uint32
	itt, expStatSN  uint32
	half            bool // it never sends all that it is asked for
}

const (
	guestOffers = 256 << 10 // FirstBurstLength and segments
	guestBurst  = 1 << 20   // MaxBurstLength
	opWrite16   = 0x8a
)

// guestData is what guests write.
var guestData [guestOffers]byte

// newGuest logs in as number n of a crowd, which has one name, on a path.
func newGuest(ctx context.Context, c *gathering, m *targetv1.Mapping, path, n int) (g *guest, err error) {
	dialer := net.Dialer{Timeout: time.Second}
	g = &guest{crowd: c, lun: uint64(m.Lun) << 48, cmdSN: 1, params: pdu.DefaultParams()}
	conn, err := dialer.DialContext(ctx, "tcp", m.Portals[path].Address)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	g.conn = conn
	if err = g.conn.SetDeadline(time.Now().Add(opTimeout)); err != nil {
		return nil, err
	}
	own := pdu.DefaultParams()
	own.MaxRecv, own.FirstBurst, own.MaxBurst, own.InitialR2T = guestOffers, guestOffers, guestBurst, false
	text := pdu.Text{}
	text.Add("InitiatorName", m.HostIqn)
	text.Add("SessionType", "Normal")
	text.Add("TargetName", m.TargetIqn)
	own.Offer(&text, false)
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(pdu.LoginReq, true)
	h.SetFlags(pdu.LoginFlags(true, false, pdu.StageOperational, pdu.StageFullFeature))
	copy(h[pdu.OffISID:], []byte{0x80, 0, byte(n >> 8), byte(n), 7, byte(path)})
	h.SetITT(1)
	h.PutU32(pdu.OffCmdSN, g.cmdSN)
	if err = g.send(h, text.Append(nil)); err != nil {
		return nil, err
	}
	answer, data, err := g.receive()
	if err != nil {
		return nil, err
	}
	if st := pdu.LoginStatus(answer.U16(pdu.OffLoginStatus)); answer.Op() != pdu.LoginResp || st != pdu.LoginSuccess {
		return nil, fmt.Errorf("login: opcode %#x, %v", byte(answer.Op()), st)
	}
	agreed, err := pdu.ParseText(data)
	if err != nil {
		return nil, err
	}
	g.params.MaxRecv = own.MaxRecv
	for _, p := range agreed {
		if pdu.Known(p.Key) {
			if err = g.params.Accept(p.Key, p.Value, &own); err != nil {
				return nil, err
			}
		}
	}
	g.itt = 1
	return g, g.conn.SetDeadline(time.Time{})
}

// send writes a PDU; there are no digests.
func (g *guest) send(h pdu.BHS, data []byte) error {
	h.SetDataLen(len(data))
	h.PutU32(pdu.OffExpStatSN, g.expStatSN)
	bufs := net.Buffers{h, data, make([]byte, pdu.Pad(len(data)))}
	_, err := bufs.WriteTo(g.conn)
	return err
}

// receive reads a PDU. The data of a Data-In goes nowhere.
func (g *guest) receive() (pdu.BHS, []byte, error) {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	if _, err := io.ReadFull(g.conn, h); err != nil {
		return nil, nil, err
	}
	n := h.DataLen() + pdu.Pad(h.DataLen())
	var data []byte
	var err error
	if h.Op() == pdu.DataIn {
		_, err = io.CopyN(io.Discard, g.conn, int64(n))
	} else {
		data = make([]byte, n)
		_, err = io.ReadFull(g.conn, data)
		data = data[:h.DataLen()]
	}
	if h.Op() != pdu.R2T && (h.Op() != pdu.DataIn || h.Flags()&pdu.StatusBit != 0) && (h.Op() != pdu.NopIn || h.ITT() != pdu.Reserved) {
		g.expStatSN = h.U32(pdu.OffStatSN) + 1
	}
	g.maxCmdSN = h.U32(pdu.OffMaxCmdSN)
	return h, data, err
}

// window tells whether the target takes another command.
func (g *guest) window() bool { return int32(g.maxCmdSN-g.cmdSN) >= 0 }

func (g *guest) command(op byte, flags byte, block int64, blocks, bytes int) pdu.BHS {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(pdu.SCSICmd, false)
	h.SetFlags(flags | 1) // SIMPLE
	h.SetLUN(g.lun)
	g.itt++
	h.SetITT(g.itt)
	h.PutU32(pdu.OffEDTL, uint32(bytes))
	h.PutU32(pdu.OffCmdSN, g.cmdSN)
	g.cmdSN++
	c := cdb(op, block)
	binary.BigEndian.PutUint32(c[10:], uint32(blocks))
	copy(h[pdu.OffCDB:], c)
	return h
}

func (g *guest) read(block int64, blocks, bytes int) error {
	return g.send(g.command(opRead16, pdu.Final|pdu.ReadBit, block, blocks, bytes), nil)
}

// write announces a write and sends the first bytes of it. Unless it is final, the target continues
// to expect data that it has not asked for, up to FirstBurstLength.
func (g *guest) write(block int64, blocks, bytes, immediate int, final bool) error {
	flags := byte(pdu.WriteBit)
	if final || g.params.InitialR2T {
		flags |= pdu.Final
	}
	if !g.params.ImmediateData {
		immediate = 0
	}
	immediate = min(immediate, bytes, int(g.params.FirstBurst), int(g.params.MaxSend), len(guestData))
	return g.send(g.command(opWrite16, flags, block, blocks, bytes), guestData[:immediate])
}

// dataOut sends the data that an R2T asks for, or, if the guest does so by half, a small part of
// it, which is not the end.
func (g *guest) dataOut(r2t pdu.BHS) error {
	off, left := r2t.U32(pdu.OffBufferOff), int(r2t.U32(pdu.OffDesired))
	segment := min(int(g.params.MaxSend), len(guestData))
	if g.half {
		segment = min(segment, left/2)
	}
	for sn := uint32(0); left > 0; sn++ {
		n := min(segment, left)
		h := pdu.BHS(make([]byte, pdu.HeaderLen))
		h.SetOp(pdu.DataOut, false)
		h.SetLUN(g.lun)
		h.SetITT(r2t.ITT())
		h.SetTTT(r2t.TTT())
		h.PutU32(pdu.OffDataSN, sn)
		h.PutU32(pdu.OffBufferOff, off)
		if left -= n; left == 0 {
			h.SetFlags(pdu.Final)
		}
		off += uint32(n)
		if err := g.send(h, guestData[:n]); err != nil || g.half {
			return err
		}
	}
	return nil
}

// errEnded is what a target that drops the session says before.
var errEnded = errors.New("the target ends the session")

// step reads what the target says and answers it. over tells that a command has ended.
func (g *guest) step() (over bool, err error) {
	h, _, err := g.receive()
	if err != nil {
		return false, err
	}
	switch h.Op() {
	case pdu.R2T:
		return false, g.dataOut(h)
	case pdu.NopIn:
		if h.TTT() == pdu.Reserved {
			return false, nil
		}
		o := pdu.BHS(make([]byte, pdu.HeaderLen))
		o.SetOp(pdu.NopOut, true)
		o.SetFlags(pdu.Final)
		o.SetLUN(h.LUN())
		o.SetITT(pdu.Reserved)
		o.SetTTT(h.TTT())
		o.PutU32(pdu.OffCmdSN, g.cmdSN)
		return false, g.send(o, nil)
	case pdu.DataIn, pdu.SCSIResp:
		if h.Op() == pdu.DataIn && h.Flags()&pdu.StatusBit == 0 {
			return false, nil
		}
		if h[pdu.OffSCSIStatus] == 0 {
			g.crowd.through.Add(1)
		} else {
			g.crowd.refused.Add(1)
		}
		return true, nil
	}
	return false, fmt.Errorf("%w: opcode %#x", errEnded, byte(h.Op()))
}
