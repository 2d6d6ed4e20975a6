package link

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// copier is one end of a pair that copies: node a keeps window frames of chunk bytes unanswered,
// node b answers each. In between node a sends a mirrored write of 4 KiB and waits for its answer,
// as a host would.
type copier struct {
	*Link
	chunk, window int
	up            chan uint64
	acks          chan struct{}
	mu            sync.Mutex
	n             uint64
	moved         int64
	stop          bool
}

func (e *copier) Up(n uint64) {
	e.n = n
	e.up <- n
}

func (e *copier) Down(uint64, bool, string) {}

func (e *copier) Messages(n uint64, list []*pair.Msg) {
	for _, m := range list {
		e.message(n, m)
	}
	e.Kick()
}

func (e *copier) message(n uint64, m *pair.Msg) {
	switch m.Type {
	case pair.MsgMirror:
		e.Send(n, &pair.Msg{Type: pair.MsgMirrorAck, ID: m.ID})
	case pair.MsgCopyData:
		e.Send(n, &pair.Msg{Type: pair.MsgCopyAck, ID: m.ID})
	case pair.MsgMirrorAck:
		e.acks <- struct{}{}
	case pair.MsgCopyAck:
		e.mu.Lock()
		e.moved += int64(e.chunk)
		stop := e.stop
		e.mu.Unlock()
		if !stop {
			e.Send(n, &pair.Msg{Type: pair.MsgCopyData, Data: zero[:e.chunk]})
		}
	}
}

var zero [1 << 20]byte

// BenchmarkMirrorBehindCopy is the round trip of a mirrored 4 KiB write while a resync keeps its
// window full: what the size of a copy frame and the window cost a host. See
// docs/decisions/0011-link-order-and-credits.md.
func BenchmarkMirrorBehindCopy(b *testing.B) {
	for _, c := range []struct{ chunk, window int }{{0, 0}, {1 << 20, 4}, {256 << 10, 16}, {256 << 10, 4}, {256 << 10, 2}, {128 << 10, 4}, {64 << 10, 4}} {
		b.Run(fmt.Sprintf("copy-%dx%dKiB", c.window, c.chunk>>10), func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			slab := make([]byte, 1<<20)
			end := func(cfg Config) *copier {
				cfg.Cluster, cfg.Pair, cfg.Logger = "c", "p", slog.New(slog.DiscardHandler)
				cfg.Alloc = func(n int) []byte { return slab[:n] } // as the runtime's pool does
				e := &copier{chunk: c.chunk, window: c.window, up: make(chan uint64, 1), acks: make(chan struct{}, 1)}
				e.Link = New(cfg, e)
				wg.Go(func() { _ = e.Run(ctx) })
				return e
			}
			a := end(Config{Self: pair.A, Listen: l})
			peer := end(Config{Self: pair.B, Dial: l.Addr().String()})
			n := <-a.up
			<-peer.up
			for range c.window {
				a.Send(n, &pair.Msg{Type: pair.MsgCopyData, Data: zero[:c.chunk]})
			}
			a.Kick()
			var took []time.Duration
			data := binary.BigEndian.AppendUint32(make([]byte, 4092), 1)
			begun := time.Now()
			for b.Loop() {
				t := time.Now()
				a.Send(n, &pair.Msg{Type: pair.MsgMirror, Data: data})
				a.Kick()
				<-a.acks
				took = append(took, time.Since(t))
			}
			total := time.Since(begun)
			a.mu.Lock()
			a.stop = true
			moved := a.moved
			a.mu.Unlock()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-median")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
			b.ReportMetric(float64(moved)/1e6/total.Seconds(), "copy-MB/s")
		})
	}
}
