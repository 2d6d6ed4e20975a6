package nbd

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
)

const fakeSize = 64 << 20

// fake is a server of one connection that the test plays. It allocates nothing per request.
type fake struct {
	net.Conn
	head [28]byte
	out  [16 + 1<<20]byte
}

type request struct {
	flags, cmd uint16
	cookie     uint64
	off        uint64
	n          uint32
}

// listen runs play for the first connection; the test waits for its end.
func listen(t testing.TB, play func(f *fake)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		play(&fake{Conn: c})
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// dial connects to a server that greets as it should.
func dial(t testing.TB, play func(f *fake)) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := Dial(ctx, "tcp", listen(t, func(f *fake) {
		f.greet(fakeSize, canFlush|canFUA|canTrim|canZeroes)
		play(f)
	}), "disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

func (f *fake) hello() {
	b := binary.BigEndian.AppendUint64(nil, magicInit)
	b = binary.BigEndian.AppendUint64(b, magicOption)
	_, _ = f.Write(binary.BigEndian.AppendUint16(b, flagFixedNewstyle|flagNoZeroes))
	var option [20]byte
	_, _ = io.ReadFull(f, option[:])
	_, _ = io.CopyN(io.Discard, f, int64(binary.BigEndian.Uint32(option[16:])))
}

func (f *fake) answer(kind uint32, data []byte) {
	b := binary.BigEndian.AppendUint64(nil, magicAnswer)
	b = binary.BigEndian.AppendUint32(b, optionGo)
	b = binary.BigEndian.AppendUint32(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	_, _ = f.Write(append(b, data...))
}

func exportInfo(size uint64, flags uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, infoExport)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(b, size), flags)
}

func blockInfo(least, best, most uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, infoBlockSize)
	for _, n := range []uint32{least, best, most} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

func (f *fake) greet(size uint64, flags uint16) {
	f.hello()
	f.answer(answerInfo, exportInfo(size, flags))
	f.answer(answerInfo, blockInfo(512, 4096, 4<<20))
	f.answer(answerAck, nil)
}

// next reads a request and throws its data away; false at the end.
func (f *fake) next() (r request, ok bool) {
	if _, err := io.ReadFull(f, f.head[:]); err != nil || binary.BigEndian.Uint32(f.head[:]) != magicRequest {
		return r, false
	}
	r = request{binary.BigEndian.Uint16(f.head[4:]), binary.BigEndian.Uint16(f.head[6:]), binary.BigEndian.Uint64(f.head[8:]),
		binary.BigEndian.Uint64(f.head[16:]), binary.BigEndian.Uint32(f.head[24:])}
	for left := int(r.n); r.cmd == cmdWrite && left > 0; {
		n, err := f.Read(f.out[16 : 16+min(left, 1<<20)])
		if err != nil {
			return r, false
		}
		left -= n
	}
	return r, r.cmd != cmdDisconnect
}

// reply answers with n bytes of data, at most 1 MiB.
func (f *fake) reply(cookie uint64, errno, n uint32) {
	binary.BigEndian.PutUint32(f.out[:], magicReply)
	binary.BigEndian.PutUint32(f.out[4:], errno)
	binary.BigEndian.PutUint64(f.out[8:], cookie)
	_, _ = f.Write(f.out[:16+n])
}

// obey answers everything in order.
func (f *fake) obey() {
	for r, ok := f.next(); ok; r, ok = f.next() {
		n := r.n
		if r.cmd != cmdRead {
			n = 0
		}
		f.reply(r.cookie, 0, n)
	}
}
