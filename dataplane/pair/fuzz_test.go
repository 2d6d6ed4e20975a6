package pair

import (
	"bytes"
	"errors"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// FuzzBody decodes any bytes as the bodies that messages carry in Meta: the ranges of an UNMAP and
// the nexus of a forwarded command. What is taken is whole, and encodes to the same bytes.
func FuzzBody(f *testing.F) {
	f.Add(encodeRanges([]scsi.Range{{Off: 0, Len: 512}, {Off: 1 << 40, Len: 1 << 30}}))
	f.Add(append(appendNexus(nil, scsi.NexusID{Initiator: "iqn.host", ISID: [6]byte{1}, Port: 2}), "rest"...))
	f.Add(bytes.Repeat([]byte{0x7f}, 16))
	f.Add([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		msg := &Msg{Kind: scsi.OpUnmap, Meta: b}
		rs, err := msg.DecodeRanges()
		switch {
		case err != nil && !errors.Is(err, errWire):
			t.Fatalf("unclassified: %v", err)
		case err == nil:
			if len(rs)*16 != len(b) || !bytes.Equal(encodeRanges(rs), b) {
				t.Fatalf("%x became %v", b, rs)
			}
			if off, end := mirrorSpan(msg); off < 0 || end < off {
				t.Fatalf("%v spans %d to %d", rs, off, end)
			}
		}
		var n scsi.NexusID
		rest, err := new(names).decodeNexus(b, &n)
		switch {
		case err != nil && !errors.Is(err, errWire):
			t.Fatalf("unclassified: %v", err)
		case err == nil && !bytes.Equal(append(appendNexus(nil, n), rest...), b):
			t.Fatalf("%x became %+v and %x", b, n, rest)
		}
	})
}
