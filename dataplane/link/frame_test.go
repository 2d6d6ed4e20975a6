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
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func frame(m *pair.Msg) []byte {
	var h [headerLen]byte
	putHeader(h[:], Version, m)
	return append(append(h[:], m.Meta...), m.Data...)
}

func full() *pair.Msg {
	return &pair.Msg{Type: pair.MsgForward, Kind: scsi.OpWrite, Flags: pair.FlagFUA, Result: scsi.NoSpace, Epoch: 1, Seq: 2, ID: 3,
		LUN: pair.LUNID{4, 5}, Off: 6, Len: 7, Front: 8, FrontN: 9, Aux: -10, Meta: []byte("meta"), Data: []byte("data")}
}

func read(b []byte) (*pair.Msg, error) {
	return ReadMsg(bytes.NewReader(b), Version, new([headerLen]byte), nil)
}

func TestFrameRoundTrip(t *testing.T) {
	for name, m := range map[string]*pair.Msg{"everything": full(), "nothing": {Type: pair.MsgHeartbeat},
		"data only": {Type: pair.MsgMirror, Data: make([]byte, 1<<20)}, "meta only": {Type: pair.MsgSync, Meta: []byte("{}")}} {
		got, err := read(frame(m))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%s: got %+v, want %+v", name, got, m)
		}
	}
}

// Any one bit that flips is noticed.
func TestFrameChecksums(t *testing.T) {
	good := frame(full())
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x10
		if m, err := read(b); err == nil {
			t.Fatalf("byte %d was changed and the frame is taken: %+v", i, m)
		}
	}
}

func TestFrameLimits(t *testing.T) {
	reseal := func(change func(h []byte)) []byte {
		b := frame(full())
		change(b)
		binary.BigEndian.PutUint32(b[108:], crc32.Checksum(b[:108], castagnoli))
		return b
	}
	for name, b := range map[string][]byte{
		"meta too long":      reseal(func(h []byte) { binary.BigEndian.PutUint32(h[88:], MaxMeta+1) }),
		"data too long":      reseal(func(h []byte) { binary.BigEndian.PutUint32(h[92:], 1<<31) }),
		"no type":            reseal(func(h []byte) { h[3] = 0 }),
		"type of the future": reseal(func(h []byte) { h[3] = byte(pair.MsgTypeEnd) }),
		"another version":    reseal(func(h []byte) { h[2] = Version + 1 }),
		"another protocol":   reseal(func(h []byte) { h[0] = 'x' }),
		"negative offset":    reseal(func(h []byte) { h[48] = 0x80 }),
		"range beyond 2^63":  reseal(func(h []byte) { h[48], h[56] = 0x7f, 0x7f }),
	} {
		allocated := 0
		_, err := ReadMsg(bytes.NewReader(b), Version, new([headerLen]byte), func(n int) []byte { allocated += n; return make([]byte, n) })
		if !errors.Is(err, ErrFrame) || allocated > 0 {
			t.Errorf("%s: %v, %d bytes allocated", name, err, allocated)
		}
	}
	for n := range len(frame(full())) {
		if _, err := read(frame(full())[:n]); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestHelloRefusals(t *testing.T) {
	good := Hello{Version: Version, Cluster: "c", Pair: "p", Node: "b", Role: "data"}
	if err := good.check("c", "p", "b"); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Hello){
		"cluster": func(h *Hello) { h.Cluster = "d" }, "pair": func(h *Hello) { h.Pair = "q" },
		"node": func(h *Hello) { h.Node = "a" }, "role": func(h *Hello) { h.Role = "x" }, "refused by": func(h *Hello) { h.Error = "no" },
	} {
		h := good
		change(&h)
		if err := h.check("c", "p", "b"); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
