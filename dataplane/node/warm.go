package node

import (
	"cmp"
	"context"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gemel-storage/gemel/dataplane/heat"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/memlimit"
)

// Each node has every LUN on its disks, but reads are answered by the owner's page cache: that of
// the new owner lacks what hosts read. So before commands are held for a move, the old owner tells
// the new one which extents were read most, and that one reads them ahead. No data depends on it,
// and a move waits for it only for so long: see docs/decisions/0067-warm-hand-over.md.

// featureWarm on the link: the other node reads ahead before a LUN moves to it.
const featureWarm = "warm"

// Limits of warming. Extents have heat.Extent bytes.
const (
	warmCalm     = 2 * time.Second        // by which a move that can wait may come later
	warmUrgent   = 500 * time.Millisecond // and one that cannot
	warmDecision = 6 * time.Second        // and all moves of one decision: the chair decides nothing meanwhile
	warmLUN      = 64                     // extents of one LUN
	warmBatch    = 256                    // extents of one move, of all LUNs
	warmRate     = 256 << 20              // bytes a second from the disk of the new owner at most
	warmShare    = 16                     // the part of the memory of the new owner
	firstReads   = time.Second            // after a move, in which reads are counted
)

// warmth is what a node knows of the reads of a LUN.
type warmth struct {
	heat  heat.Record  // of what hosts read while this node was the owner
	since atomic.Int64 // when this node became the owner, 0: not since the process began
}

// first reports whether the LUN moved here within the last second.
func (w *warmth) first(now int64) bool {
	since := w.since.Load()
	return since != 0 && now-since < int64(firstReads)
}

// warmTally counts for the metrics.
type warmTally struct {
	reading             sync.Mutex // of the one that reads ahead
	read, cached        atomic.Uint64
	firstHit, firstMiss atomic.Uint64
}

var (
	descWarm  = desc("ownership_read_ahead_bytes_total", "Bytes that this node was asked to read ahead because a LUN was about to move to it: from the disk (read), or in the page cache already (cached).", "from")
	descFirst = desc("ownership_first_reads_total", "Reads of LUNs within a second after they moved to this node: answered by the page cache (cached), or not (missed).", "cache")
)

func (t *warmTally) collect(count func(d *prometheus.Desc, v uint64, labels ...string)) {
	count(descWarm, t.read.Load(), "read")
	count(descWarm, t.cached.Load(), "cached")
	count(descFirst, t.firstHit.Load(), "cached")
	count(descFirst, t.firstMiss.Load(), "missed")
}

// noteRead notes a read of a host at the owner.
func (n *Node) noteRead(e *unitEntry, s *scsi.Op, now int64, cached bool) {
	e.warmth.heat.Read(s.Off, s.Len, now)
	if !e.warmth.first(now) {
		return
	}
	if cached {
		n.seen.warm.firstHit.Add(1)
	} else {
		n.seen.warm.firstMiss.Add(1)
	}
}

// warmLimit is how long a move may be later for warming.
func warmLimit(urgent bool) time.Duration {
	if urgent {
		return warmUrgent
	}
	return warmCalm
}

type warmRequest struct {
	Extents []warmExtent  `json:"extents"` // the hottest first
	Within  time.Duration `json:"within"`
}

type warmExtent struct {
	LUN string `json:"lun"`
	N   int64  `json:"n"` // at as many times heat.Extent
}

// warmReply has bytes.
type warmReply struct {
	Read   int64 `json:"read"`
	Cached int64 `json:"cached"`
}

// warm has the other node read ahead what hosts read most of LUNs that are about to move there. It
// returns within the limit, whatever the other node does; a failure costs the hosts some misses and
// nothing else. It returns whether it has taken time.
func (n *Node) warm(ctx context.Context, ids []pair.LUNID, limit time.Duration) bool {
	if limit <= 0 || n.run.stopping.Load() || !n.peerKnows(featureWarm) {
		return false
	}
	limit = min(limit, warmCalm)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req := warmRequest{Extents: n.hottest(ctx, ids), Within: limit - limit/8} // so that its answer comes in time
	if len(req.Extents) == 0 {
		return false
	}
	start := time.Now()
	var r warmReply
	if err := n.call(ctx, "warm", req, &r); err != nil {
		n.log.Info("the other node did not read ahead in time what hosts read; moving the LUNs all the same", "luns", len(ids), "extents", len(req.Extents), "err", err)
		return true
	}
	n.log.Debug("the other node has read ahead what hosts read", "luns", len(ids), "extents", len(req.Extents), "read", r.Read, "cached", r.Cached, "took", time.Since(start))
	return true
}

// hottest lists what hosts read most of LUNs, as far as it gets before the context ends.
func (n *Node) hottest(ctx context.Context, ids []pair.LUNID) []warmExtent {
	type hot struct {
		lun string
		heat.Hot
	}
	var all []hot
	now, t := n.boottime(), n.md.tables.Load()
	for _, id := range ids {
		if ctx.Err() != nil {
			break
		}
		if e := t.units[id]; e != nil {
			for _, h := range e.warmth.heat.Hottest(now, warmLUN) {
				all = append(all, hot{e.lun.UUID, h})
			}
		}
	}
	slices.SortStableFunc(all, func(x, y hot) int { return cmp.Compare(y.Reads, x.Reads) })
	var out []warmExtent
	for _, h := range all[:min(len(all), warmBatch)] {
		out = append(out, warmExtent{h.lun, h.Extent})
	}
	return out
}

// warmAllowed is how many bytes one request may bring into the page cache: what is read ahead must
// not displace what hosts of this node's own LUNs read.
func warmAllowed() int64 {
	return min(warmBatch*heat.Extent, memlimit.Share(warmShare, 0, math.MaxInt64), memlimit.Available(os.DirFS("/"))/warmShare)
}

// readAhead does what the other node's warm asks for. The list is the other node's: what is no
// extent of a LUN is passed over. A second request meanwhile gets nothing, so that one that takes
// longer than its asker waits does not come on top of the next.
func (n *Node) readAhead(ctx context.Context, req warmRequest) (r warmReply) {
	t := &n.seen.warm
	if !t.reading.TryLock() {
		return r
	}
	defer t.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, min(req.Within, warmCalm))
	defer cancel()
	buf := n.io.buffers.get(heat.Extent)
	defer n.io.buffers.put(buf)
	left := warmAllowed()
	for _, x := range req.Extents[:min(len(req.Extents), warmBatch)] {
		e := n.entryOf(x.LUN)
		if e == nil || e.misfit || x.N < 0 || x.N > (e.lun.Size-1)/heat.Extent {
			continue
		}
		off := x.N * heat.Extent
		p := buf[:min(heat.Extent, e.lun.Size-off)]
		if left -= int64(len(p)); left < 0 || !letHosts(ctx, e.readers) {
			break
		}
		start := time.Now()
		cached, err := e.file.ReadAhead(p, off)
		switch {
		case err != nil: // a host that reads it hears of it
		case cached:
			r.Cached += int64(len(p))
			t.cached.Add(uint64(len(p)))
		default:
			r.Read += int64(len(p))
			t.read.Add(uint64(len(p)))
			rest(ctx, len(p), time.Since(start))
		}
	}
	return r
}

// letHosts waits while reads of hosts wait for the disk; false: the time is over.
func letHosts(ctx context.Context, r *readers) bool {
	for r.saturated() && ctx.Err() == nil {
		sleep(ctx, 5*time.Millisecond)
	}
	return ctx.Err() == nil
}

// rest leaves the disk to others after a read of so many bytes, for at least as long as it took.
func rest(ctx context.Context, bytes int, took time.Duration) {
	sleep(ctx, max(took, time.Duration(bytes)*time.Second/warmRate-took))
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
