package iscsi

import (
	"math/bits"
	"sync"
)

// Data buffers come from pools by size class, powers of two from 4 KiB to 16 MiB.
const (
	minClass  = 12
	maxClass  = 24
	maxBuffer = 1 << maxClass
)

type buffer struct {
	b     []byte // length is the class size
	class int
}

var pools [maxClass + 1]sync.Pool

// classSize is what getBuffer takes for n bytes, 0 for none.
func classSize(n int) int {
	class := max(bits.Len(uint(max(n, 1)-1)), minClass)
	switch {
	case n == 0:
		return 0
	case class > maxClass:
		return n
	}
	return 1 << class
}

// getBuffer returns a buffer of at least n bytes with undefined content. Beyond 16 MiB, which no
// limit of this server permits but a Device might ask for, it is not pooled.
func getBuffer(n int) *buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), minClass)
	if class > maxClass {
		return &buffer{b: make([]byte, n), class: -1}
	}
	if b, ok := pools[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, 1<<class), class: class}
}

func putBuffer(b *buffer) {
	if b.class >= 0 {
		pools[b.class].Put(b)
	}
}
