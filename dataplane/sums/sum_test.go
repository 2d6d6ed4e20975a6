package sums

import (
	"encoding/binary"
	"math/bits"
	"testing"
)

// withSum is a block whose CRC32C gives x, before the values that are reserved are moved. The
// checksum is linear in the block's bits, so that its last 32 can be solved for.
func withSum(x Sum) []byte {
	p := block(1)
	tail := p[BlockSize-4:]
	plain := func(v uint32) uint32 {
		binary.LittleEndian.PutUint32(tail, v)
		return crcLE(p) ^ zeroCRC
	}
	base := plain(0)
	type row struct{ effect, in uint32 }
	var pivots [32]row
	for i := range 32 {
		r := row{plain(1<<i) ^ base, 1 << i}
		for r.effect != 0 {
			top := bits.Len32(r.effect) - 1
			if pivots[top].effect == 0 {
				pivots[top] = r
				break
			}
			r.effect, r.in = r.effect^pivots[top].effect, r.in^pivots[top].in
		}
	}
	var v uint32
	for rest := base ^ uint32(x); rest != 0; {
		q := pivots[bits.Len32(rest)-1]
		rest, v = rest^q.effect, v^q.in
	}
	plain(v)
	return p
}

// TestReservedValues: a block whose checksum would be one of the two values that are no checksums
// has another.
func TestReservedValues(t *testing.T) {
	for x, want := range map[Sum]Sum{Bad: Bad - reserved, Unknown: Unknown - reserved, 0x12345678: 0x12345678, Unknown - 1: Unknown - 1} {
		p := withSum(x)
		if got := Sum(crcLE(p) ^ zeroCRC); got != x {
			t.Fatalf("the block made for %08x has %08x", x, got)
		}
		if got := Of(p); got != want {
			t.Errorf("a block of checksum %08x has the sum %08x, want %08x", x, got, want)
		}
	}
}

func TestSumIsZeroForZeroesOnly(t *testing.T) {
	if Of(block(0)) != 0 || Of(nil) != 0 || Of(make([]byte, 512)) != 0 {
		t.Error("zeroes have another sum than 0")
	}
	short := block(7)
	clear(short[1024:])
	if Of(short) != Of(short[:1024]) {
		t.Error("a short block does not count as filled up with zeroes")
	}
	for n := range uint32(1000) {
		p := block(n + 1)
		was := Of(p)
		bit := int(n*37) % (BlockSize * 8)
		p[bit/8] ^= 1 << (bit % 8)
		if Of(p) == was || was >= Unknown {
			t.Fatalf("content %d: sum %08x, with bit %d flipped %08x", n, was, bit, Of(p))
		}
	}
}
