package store

import (
	"bytes"
	"testing"
)

// What is zero in whole blocks is a hole after it, whatever was there; the rest is data, and all of
// it reads as it was given.
func TestWriteSparseMakesHolesOfZeroBlocks(t *testing.T) {
	const block = sparseBlock
	_, f := lunFile(t, Options{})
	must(t, f.WriteAt(bytes.Repeat([]byte{7}, 16*block), 0))
	p := make([]byte, 8*block+100)
	copy(p[2*block:], content(1, 2*block)) // two of zeroes, two of data, one with a single byte, three of zeroes, and a rest of zeroes
	p[5*block-1] = 1
	must(t, f.WriteSparse(p, block))
	reads(t, f, block, p)
	reads(t, f, 0, bytes.Repeat([]byte{7}, block))
	reads(t, f, 9*block+100, bytes.Repeat([]byte{7}, block))
	for _, x := range []struct {
		at, run int64
		data    bool
	}{{block, 2 * block, false}, {3 * block, 3 * block, true}, {6 * block, 3 * block, false}} {
		if run, data, err := f.Extents(x.at, 9*block-x.at); err != nil || run != x.run || data != x.data {
			t.Errorf("at block %d: %d bytes, data %v, %v; want %d, %v", x.at/block, run, data, err, x.run, x.data)
		}
	}
}

// A pattern fills the range to its last byte and nothing beyond, also where it does not divide what
// is written at once.
func TestWritePatternFillsTheRange(t *testing.T) {
	for _, x := range []struct{ block, length int }{{512, 512}, {512, 3 * 512}, {3 * 512, 2*patternChunk + 512}, {4096, patternChunk + 4096}} {
		_, f := lunFile(t, Options{})
		pattern := content(2, x.block)
		must(t, f.WritePattern(pattern, 1024, int64(x.length)))
		reads(t, f, 1024, bytes.Repeat(pattern, x.length/x.block+1)[:x.length])
		reads(t, f, 0, make([]byte, 1024))
		reads(t, f, 1024+int64(x.length), make([]byte, 1024))
	}
}

func TestAllZeroSeesEveryByte(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 200} {
		p := make([]byte, n)
		if !AllZero(p) {
			t.Errorf("%d zeroes", n)
		}
		for i := range p {
			p[i] = 1
			if AllZero(p) {
				t.Errorf("byte %d of %d is not seen", i, n)
			}
			p[i] = 0
		}
	}
}
