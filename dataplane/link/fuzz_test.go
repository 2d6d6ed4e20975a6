package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"reflect"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// FuzzFrame reads any bytes as a frame. With seal the checksums are made right first, so that what
// is behind them is reached too. What is taken survives a round trip, and no header makes more be
// allocated than the limits say.
func FuzzFrame(f *testing.F) {
	f.Add(frame(full()), false)
	f.Add(frame(full()), true)
	f.Add(frame(&pair.Msg{Type: pair.MsgHeartbeat}), true)
	f.Add([]byte("GL"), false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		b = bytes.Clone(b)
		if seal && len(b) >= headerLen {
			b[2] = Version
			body := b[headerLen:]
			ml, dl := binary.BigEndian.Uint32(b[88:]), binary.BigEndian.Uint32(b[92:])
			if uint64(ml)+uint64(dl) > uint64(len(body)) { // else the body is nearly always too short
				ml = min(ml, uint32(len(body)))
				dl = uint32(len(body)) - ml
				binary.BigEndian.PutUint32(b[88:], ml)
				binary.BigEndian.PutUint32(b[92:], dl)
			}
			binary.BigEndian.PutUint32(b[96:], crc32.Checksum(body[:ml+dl], castagnoli))
			binary.BigEndian.PutUint32(b[108:], crc32.Checksum(b[:108], castagnoli))
		}
		allocated := 0
		m, err := ReadMsg(bytes.NewReader(b), Version, new([headerLen]byte), func(n int) []byte {
			allocated += n
			return make([]byte, n)
		})
		if allocated > MaxData || errors.Is(err, ErrFrame) && len(b) < headerLen {
			t.Fatalf("%d bytes allocated, %v", allocated, err)
		}
		if err != nil {
			if !errors.Is(err, ErrFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		if again := frame(m); !bytes.Equal(again, b[:len(again)]) {
			// Only the bytes that a sender sets to zero may differ, and they are not read.
			n, err := read(again)
			if err != nil || !reflect.DeepEqual(n, m) {
				t.Fatalf("%+v does not survive a round trip: %+v, %v", m, n, err)
			}
		}
	})
}

// FuzzHello reads any bytes as a hello and negotiates with it: what comes out is within both
// ranges, and the features are a part of what is offered.
func FuzzHello(f *testing.F) {
	add := func(text string) { f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)) }
	add(`{"version":1,"cluster":"c","pair":"p","node":"b","role":"data","link":9,"error":""}`)
	add(`{"version":1,"min":1,"max":4,"features":["a","b","a"],"cluster":"c","pair":"p","node":"b","role":"beat","link":9}`)
	add(`{"min":-1,"max":1e3,"features":[[]]}`)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	own, features := Versions{2, 5}, []string{"a", "b"}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		n, err := negotiate(own, features, &h)
		if err != nil {
			if !errors.Is(err, ErrRefused) {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		v := h.versions()
		if n.Version < own.Min || n.Version > own.Max || n.Version < v.Min || n.Version > v.Max || len(n.Features) > len(features) {
			t.Fatalf("%+v came of %+v", n, h)
		}
		_ = h.check("c", "p", "b")
	})
}
