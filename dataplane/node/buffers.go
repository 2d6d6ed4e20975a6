package node

import (
	"math/bits"
	"sync"
	"unsafe"
)

// buffers hands out byte slices by power-of-two size classes, from 4 KiB to 16 MiB. The pools have
// pointers to their first bytes, for a slice in a pool would be an object of its own, made whenever
// a buffer comes back.
type buffers struct {
	classes [13]sync.Pool // of *byte
}

func (b *buffers) class(n int) int {
	if n <= 4096 {
		return 0
	}
	return bits.Len(uint(n-1)) - 12
}

// get returns n bytes of undefined content.
func (b *buffers) get(n int) []byte {
	c := b.class(n)
	if c >= len(b.classes) {
		return make([]byte, n)
	}
	if p, _ := b.classes[c].Get().(*byte); p != nil {
		return unsafe.Slice(p, 4096<<c)[:n]
	}
	return make([]byte, n, 4096<<c)
}

// put takes a buffer of get back; others are left to the collector.
func (b *buffers) put(p []byte) {
	n := cap(p)
	if n < 4096 || n&(n-1) != 0 || n > 4096<<(len(b.classes)-1) {
		return
	}
	b.classes[b.class(n)].Put(unsafe.SliceData(p))
}
