package iscsi

import (
	"io"
	"runtime"
	"testing"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// batch sends n copies of a PDU at once and reads answers of size bytes in total.
type batcher struct {
	c       *client
	one     []byte
	out, in []byte
	depth   int
}

func newBatcher(c *client, h pdu.BHS, data []byte, answer, depth int) *batcher {
	x := &batcher{c: c, one: c.encode(h, nil, data), depth: depth, in: make([]byte, depth*answer)}
	x.out = make([]byte, 0, depth*len(x.one))
	c.cmdSN-- // the command of h is never sent as it is
	return x
}

func (x *batcher) round() error {
	x.out = x.out[:0]
	for range x.depth {
		at := len(x.out)
		x.out = append(x.out, x.one...)
		h := pdu.BHS(x.out[at:])
		h.SetITT(x.c.itt)
		h.PutU32(pdu.OffCmdSN, x.c.cmdSN)
		if x.c.params.HeaderDigest {
			pdu.PutDigest(h[pdu.HeaderLen:], pdu.Digest(h[:pdu.HeaderLen]))
		}
		x.c.itt++
		x.c.cmdSN++
	}
	if _, err := x.c.nc.Write(x.out); err != nil {
		return err
	}
	_, err := io.ReadFull(x.c.nc, x.in)
	return err
}

// No allocation per command in steady state, client and server together: 32 commands in flight,
// data of 4 KiB.
func TestNoAllocations(t *testing.T) {
	b := serve(t, nil, nil)
	b.dev.forget.Store(true)
	const depth = 32
	for _, x := range []struct {
		name   string
		op     byte
		flags  byte
		send   int
		answer int
	}{{"read", opRead, pdu.ReadBit, 0, pdu.HeaderLen + 4096}, {"write", opWrite, pdu.WriteBit, 4096, pdu.HeaderLen}} {
		c := b.connect(t)
		w := newBatcher(c, c.command(x.op, pdu.Final|x.flags, 0, 8, 4096), make([]byte, x.send), x.answer, depth)
		perRound := testing.AllocsPerRun(200, func() {
			if err := w.round(); err != nil {
				t.Fatal(err)
			}
		})
		// A garbage collection empties the pools, and the race detector makes them forget at
		// random.
		limit := depth / 4.0
		if raceEnabled {
			limit = 8 * depth
		}
		if perRound > limit {
			t.Errorf("%s: %.1f allocations for %d commands", x.name, perRound, depth)
		}
		t.Logf("%s: %.3f allocations per command", x.name, perRound/depth)
	}
}

func benchmark(b *testing.B, op, flags byte, send, answer, blocks, depth int, keys ...string) {
	s := serve(b, nil, nil)
	s.dev.forget.Store(true)
	c := s.connect(b, keys...)
	w := newBatcher(c, c.command(op, pdu.Final|flags, 0, blocks, blocks*512), make([]byte, send), answer, depth)
	b.SetBytes(int64(blocks * 512))
	b.ReportAllocs()
	runtime.GC()
	b.ResetTimer()
	for i := 0; i < b.N; i += depth {
		if err := w.round(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead4K32(b *testing.B) {
	benchmark(b, opRead, pdu.ReadBit, 0, pdu.HeaderLen+4096, 8, 32)
}

func BenchmarkRead4K1(b *testing.B) {
	benchmark(b, opRead, pdu.ReadBit, 0, pdu.HeaderLen+4096, 8, 1)
}

func BenchmarkRead4K32Digest(b *testing.B) {
	benchmark(b, opRead, pdu.ReadBit, 0, pdu.HeaderLen+4096+8, 8, 32, "HeaderDigest", "CRC32C", "DataDigest", "CRC32C")
}

func BenchmarkWrite4K32(b *testing.B) {
	benchmark(b, opWrite, pdu.WriteBit, 4096, pdu.HeaderLen, 8, 32)
}

// BenchmarkRead1M is one segment of 256 KiB after the other.
func BenchmarkRead1M(b *testing.B) {
	benchmark(b, opRead, pdu.ReadBit, 0, 4*pdu.HeaderLen+1<<20, 2048, 4, "MaxRecvDataSegmentLength", "262144", "MaxBurstLength", "1048576")
}

// BenchmarkAsync4K32 has another goroutine complete each command.
func BenchmarkAsync4K32(b *testing.B) {
	benchmark(b, opAsync, pdu.ReadBit, 0, pdu.HeaderLen+4096, 8, 32)
}
