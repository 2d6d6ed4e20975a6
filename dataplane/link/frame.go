// Package link carries the messages of a pair between its two nodes: one connection for data, one
// for heartbeats, mutual TLS, a CRC32C on every frame (R-"Link"). The protocol itself is in package
// pair.
package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// The versions of the frame format that this release speaks. A link runs under the highest that
// both ends speak (negotiate.go), which every frame repeats. A release speaks the newest version of
// the release before it, so that a pair can be upgraded one node after the other.
const (
	MinVersion = 1
	Version    = 1
)

// Limits on what a frame may make the receiver allocate.
const (
	MaxMeta = pair.MaxFrameMeta // of a pair's metadata, or a part of it
	MaxData = 16 << 20          // one command's data
)

const headerLen = 112

// ErrFrame is wrapped by every error about a malformed frame.
var ErrFrame = errors.New("malformed link frame")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const magic = 0x474c // "GL"

// putHeader encodes a message's header; crcs are computed over header, meta and data.
func putHeader(h []byte, version uint8, m *pair.Msg) {
	be := binary.BigEndian
	be.PutUint16(h[0:], magic)
	h[2], h[3] = version, byte(m.Type)
	h[4], h[5], h[6], h[7] = byte(m.Kind), m.Flags, byte(m.Result), 0
	be.PutUint64(h[8:], m.Epoch)
	be.PutUint64(h[16:], m.Seq)
	be.PutUint64(h[24:], m.ID)
	copy(h[32:48], m.LUN[:])
	be.PutUint64(h[48:], uint64(m.Off))
	be.PutUint64(h[56:], uint64(m.Len))
	be.PutUint64(h[64:], m.Front)
	be.PutUint64(h[72:], m.FrontN)
	be.PutUint64(h[80:], uint64(m.Aux))
	be.PutUint32(h[88:], uint32(len(m.Meta)))
	be.PutUint32(h[92:], uint32(len(m.Data)))
	crc := crc32.Update(crc32.Checksum(m.Meta, castagnoli), castagnoli, m.Data)
	be.PutUint32(h[96:], crc)
	be.PutUint32(h[100:], 0)
	be.PutUint32(h[104:], 0)
	be.PutUint32(h[108:], crc32.Checksum(h[:108], castagnoli))
}

// parseHeader decodes and checks a header. The lengths it returns are within the limits.
func parseHeader(h []byte, version uint8, m *pair.Msg) (meta, data int, crc uint32, err error) {
	be := binary.BigEndian
	switch {
	case be.Uint16(h) != magic:
		return 0, 0, 0, fmt.Errorf("%w: wrong magic %04x", ErrFrame, be.Uint16(h))
	case h[2] != version:
		return 0, 0, 0, fmt.Errorf("%w: version %d on a link of version %d", ErrFrame, h[2], version)
	case crc32.Checksum(h[:108], castagnoli) != be.Uint32(h[108:]):
		return 0, 0, 0, fmt.Errorf("%w: header checksum", ErrFrame)
	case h[3] == 0 || pair.MsgType(h[3]) >= pair.MsgTypeEnd:
		return 0, 0, 0, fmt.Errorf("%w: type %d", ErrFrame, h[3])
	}
	*m = pair.Msg{Type: pair.MsgType(h[3]), Kind: scsi.OpKind(h[4]), Flags: h[5], Result: scsi.Result(h[6]),
		Epoch: be.Uint64(h[8:]), Seq: be.Uint64(h[16:]), ID: be.Uint64(h[24:]),
		Off: int64(be.Uint64(h[48:])), Len: int64(be.Uint64(h[56:])),
		Front: be.Uint64(h[64:]), FrontN: be.Uint64(h[72:]), Aux: int64(be.Uint64(h[80:])), Spare: m.Spare}
	copy(m.LUN[:], h[32:48])
	ml, dl := be.Uint32(h[88:]), be.Uint32(h[92:])
	if ml > MaxMeta || dl > MaxData {
		return 0, 0, 0, fmt.Errorf("%w: %d + %d bytes, at most %d + %d", ErrFrame, ml, dl, MaxMeta, MaxData)
	}
	if m.Off < 0 || m.Len < 0 || m.Off+m.Len < 0 {
		return 0, 0, 0, fmt.Errorf("%w: range %d+%d", ErrFrame, m.Off, m.Len)
	}
	return int(ml), int(dl), be.Uint32(h[96:]), nil
}

var messages = sync.Pool{New: func() any { return new(pair.Msg) }}

// NewMsg gives a message that is as pair.Msg.Reset leaves it.
func NewMsg() *pair.Msg { return messages.Get().(*pair.Msg) }

// Recycle makes a message that came over a link, or was sent, ready for another one. The caller
// refers to it and to its Meta no more; its data is the caller's.
func Recycle(m *pair.Msg) {
	m.Reset()
	messages.Put(m)
}

// ReadMsg reads one frame of a link that runs under version. alloc gives the buffer for the data;
// nil means make.
func ReadMsg(r io.Reader, version uint8, scratch *[headerLen]byte, alloc func(n int) []byte) (*pair.Msg, error) {
	if _, err := io.ReadFull(r, scratch[:]); err != nil {
		return nil, err
	}
	m := NewMsg()
	ml, dl, want, err := parseHeader(scratch[:], version, m)
	if err != nil {
		return nil, err
	}
	var crc uint32
	if ml > 0 {
		if ml <= cap(m.Spare) {
			m.Meta, m.Spare = m.Spare[:ml], nil
		} else {
			m.Meta = make([]byte, ml)
		}
		if _, err := io.ReadFull(r, m.Meta); err != nil {
			return nil, err
		}
		crc = crc32.Checksum(m.Meta, castagnoli)
	}
	if dl > 0 {
		if alloc != nil {
			m.Data = alloc(dl)
		} else {
			m.Data = make([]byte, dl)
		}
		if _, err := io.ReadFull(r, m.Data); err != nil {
			return nil, err
		}
		crc = crc32.Update(crc, castagnoli, m.Data)
	}
	if crc != want {
		return nil, fmt.Errorf("%w: body checksum", ErrFrame)
	}
	return m, nil
}
