// Package load is the benchmark's load generator: it keeps requests in flight on devices, and
// counts what they take. Requests and buffers are reused and nothing is allocated for an operation,
// because the generator shares the machine with what it measures.
package load

import (
	"context"

	"github.com/gemel-storage/gemel/initiator"
)

// Device is what can be loaded: an initiator.Device, or the client of a peer that speaks another
// protocol.
type Device interface {
	Submit(*initiator.IO) error
	Size() int64 // bytes
	Flush(context.Context) error
	ReadAt(context.Context, []byte, int64) (int, error)
	WriteAt(context.Context, []byte, int64) (int, error)
	Close(context.Context) error
}

// Workload is an access pattern.
type Workload struct {
	Reads      int // percent of the operations
	Block      int // bytes
	Depth      int // requests in flight, over all devices together
	Sequential bool
	FUA        bool
	Flush      bool    // each write is followed by a flush, and the operation is both
	Rate       float64 // operations a second; 0: as many as can be. Latency counts from when an operation was due
	Submitted  bool    // with a rate that cannot be kept: latency counts from when an operation was submitted
	Span       int64   // bytes of each device that are used, from its beginning; 0: all
	Tolerant   bool    // an error is counted and the load continues; otherwise it ends the load
}

// Unit is what a rate of the workload is given in.
func (w Workload) Unit() string {
	if w.Sequential {
		return "MiB/s"
	}
	return "IOPS"
}

// InUnit converts operations a second.
func (w Workload) InUnit(perSecond float64) float64 {
	if w.Sequential {
		return perSecond * float64(w.Block) / (1 << 20)
	}
	return perSecond
}
