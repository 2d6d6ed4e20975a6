//go:build amd64 || arm64

// Package prefetch brings memory near to the processor before it is needed.
package prefetch

import "unsafe"

// Line begins to load the cache line of p and does not wait for it. p is not dereferenced: no value
// of it is a fault. Go has no way to say this but in assembly.
//
//go:noescape
func Line(p unsafe.Pointer)
