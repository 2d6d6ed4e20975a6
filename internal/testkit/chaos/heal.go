package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// What has to come of damage: no host ever sees it, but for read errors of what was damaged at a
// node while it was the only one. When the nodes are in sync again, hosts read what was damaged,
// what was lost is written again as from a backup, and scrubs are repeated until one finds nothing.

const (
	healBound = 60 * time.Second // for scrubs to find nothing more
	scrubRate = 8 << 30          // bytes a second: as fast as it goes
	exposure  = 400 * time.Millisecond
)

// wounds are damaged blocks of LUNs under test, and when there was no other copy of them. A key's
// block counts in blocks of 4 KiB here.
type wounds struct {
	mu       sync.Mutex
	at       map[key]bool
	from, to int64 // of the recorder's time
	size     int64 // hosts' blocks in one
	judged   atomic.Int64
}

func (w *wounds) forget() {
	w.mu.Lock()
	w.at, w.from, w.to = map[key]bool{}, 0, 0
	w.mu.Unlock()
}

func (w *wounds) add(k key) {
	w.mu.Lock()
	w.at[k] = true
	w.mu.Unlock()
}

func (w *wounds) open(now int64) {
	w.mu.Lock()
	w.from, w.to = now, math.MaxInt64
	w.mu.Unlock()
}

func (w *wounds) close(now int64) {
	w.mu.Lock()
	w.to = min(w.to, now)
	w.mu.Unlock()
}

// list is in order, if there was a time without another copy.
func (w *wounds) list() (list []key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.to == 0 {
		return nil
	}
	for k := range w.at {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b key) int { return int(int64(a.lun-b.lun)<<32 + a.block - b.block) })
	return list
}

// hurt tells that an error is what is left of a damaged block of which there was no other copy at
// some time during an operation.
func (r *recorder) hurt(k key, err error, start int64) bool {
	w := &r.wounds
	w.mu.Lock()
	defer w.mu.Unlock()
	if !errors.Is(err, initiator.ErrMedium) || start >= w.to || r.now() < w.from || !w.at[key{k.lun, k.block / max(w.size, 1)}] {
		return false
	}
	w.judged.Add(1)
	return true
}

// counted is what the process of a node has said it healed.
type counted struct {
	pid              int
	healed, repaired float64
}

// tally adds what nodes have healed since they were asked last. A node that does not answer is
// asked another time.
func (r *rig) tally(ctx context.Context) {
	for i := range harness.Names {
		now := counted{pid: r.pair.Serving(i)}
		if now.pid == 0 || r.rot.unchecked {
			continue
		}
		if err := scrape(ctx, "http://"+r.pair.Metrics[i]+"/metrics", map[string]*float64{`gemel_checksum_blocks_total{event="healed"}`: &now.healed,
			"gemel_scrub_repaired_ranges_total": &now.repaired}); err != nil {
			continue
		}
		was := &r.rot.counted[i]
		if was.pid != now.pid {
			*was = counted{}
		}
		r.rot.healed += int64(now.healed - was.healed)
		r.rot.repaired += int64(now.repaired - was.repaired)
		*was = now
	}
}

// doubted is how many bytes of both nodes have no checksum that is believed.
func (r *rig) doubted(ctx context.Context) (sum float64, err error) {
	for i := range harness.Names {
		var total, covered, doubt float64
		if err := scrape(ctx, "http://"+r.pair.Metrics[i]+"/metrics", map[string]*float64{`gemel_checksum_covered_bytes{kind="total"}`: &total,
			`gemel_checksum_covered_bytes{kind="covered"}`: &covered, `gemel_checksum_covered_bytes{kind="doubted"}`: &doubt}); err != nil {
			return 0, fmt.Errorf("metrics of node %s: %w", harness.Names[i], err)
		}
		sum += total - covered + doubt
	}
	return sum, nil
}

// believed waits until both nodes believe all of their checksums: what is damaged before would be
// taken for what was written.
func (r *rig) believed(ctx context.Context) error {
	if r.rot.unchecked {
		return nil
	}
	if sum, err := r.doubted(ctx); err == nil && sum == 0 {
		return nil
	}
	if err := r.scrubbed(ctx, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healBound)
	defer cancel()
	return harness.Wait(ctx, "all blocks have checksums that are believed", func() (bool, string) {
		sum, err := r.doubted(ctx)
		return err == nil && sum == 0, fmt.Sprintf("%.0f bytes have none (%v)", sum, err)
	})
}

// afterDamage has hosts read what was damaged, restores what was lost, and heals the rest.
func (r *rig) afterDamage(ctx context.Context) error {
	if err := wait(ctx, exposure); err != nil {
		return err
	}
	if err := r.readSeldom(); err != nil {
		return err
	}
	if r.rot.unchecked {
		return nil
	}
	if err := r.restore(); err != nil {
		return err
	}
	r.rec.wounds.close(r.rec.now())
	uuids := append(slices.Clone(r.luns), r.seldomID)
	return r.scrubbed(ctx, append(uuids, r.kept()...))
}

// restore writes the blocks again that are good nowhere.
func (r *rig) restore() error {
	size := int64(r.hosts[0].disks[0].BlockSize())
	per := sumBlock / size
	buf := make([]byte, sumBlock)
	for _, k := range r.rec.wounds.list() {
		d := r.hosts[0].disks[k.lun]
		err := d.do(initiator.OpRead, k.block*per, buf, false)
		if err == nil {
			continue
		}
		if !errors.Is(err, initiator.ErrMedium) {
			return fmt.Errorf("read of a damaged block: %w", err)
		}
		clear(buf)
		var ops []porcupine.Operation
		var keys []key
		for i := range per {
			if at := (key{k.lun, k.block*per + i}); slices.Contains(r.keys, at) {
				v := r.rec.value(at)
				register.Fill(buf[i*size:(i+1)*size], v)
				w := porcupine.Operation{ClientId: readerID, Input: register.Input{Kind: register.Write, Value: v}, Call: r.rec.now()}
				keys, ops = append(keys, at), append(ops, w)
			}
		}
		err = d.do(initiator.OpWrite, k.block*per, buf, false)
		for i, at := range keys {
			maybe, in := ops[i], ops[i].Input.(register.Input)
			in.Optional = true
			maybe.Input, maybe.Return, ops[i].Return = in, r.rec.now(), r.rec.now()
			r.rec.add(at, ops[i], maybe, maybe) // a host's own retry is at-least-once
		}
		if err != nil {
			return fmt.Errorf("write of a lost block: %w", err)
		}
		r.rot.restored++
	}
	return nil
}

// readSeldom reads all of the LUN that is seldom written. Nothing writes to it while a node is
// alone and damaged, so that there is a good copy of each block whenever the nodes are in sync:
// what the one had lost it has got back from the other, also where it did not know that its regions
// are alike.
func (r *rig) readSeldom() error {
	size := r.seldom.BlockSize()
	buf := make([]byte, seldomWrite)
	for off := int64(0); off < seldomLUN; off += seldomWrite {
		may := r.rot.seldomMay[off]
		if may == nil {
			may = []uint64{seldomValue}
		}
		err := r.seldom.do(initiator.OpRead, off/int64(size), buf, false)
		if err != nil {
			r.rec.failed("read of the LUN that is seldom written, at %d: %w", off, err)
			continue
		}
		for at := 0; at < len(buf); at += size {
			if v, err := register.Parse(buf[at : at+size]); err != nil || !slices.Contains(may, v) {
				r.rec.wrongRead(fmt.Sprintf("byte %d of the LUN that is seldom written (which is to hold %#x)", off+int64(at), may), v, err)
			}
		}
	}
	return nil
}

// scrubbed has both nodes compare objects, all if none are named, until nothing is found.
func (r *rig) scrubbed(ctx context.Context, uuids []string) error {
	ctx, cancel := context.WithTimeout(ctx, healBound)
	defer cancel()
	saw := ""
	for {
		r.tally(ctx)
		healed := r.rot.healed + r.rot.repaired
		clean, text, err := r.scrubOnce(ctx, uuids)
		if err != nil {
			text = err.Error()
		}
		r.tally(ctx)
		if clean && healed == r.rot.healed+r.rot.repaired {
			return nil
		}
		if clean {
			text = fmt.Sprintf("%d blocks were healed", r.rot.healed+r.rot.repaired-healed)
		}
		if saw = text; wait(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("scrubs find something for %v; the last one: %s: %w", healBound, saw, context.Cause(ctx))
		}
	}
}

func (r *rig) scrubOnce(ctx context.Context, uuids []string) (clean bool, saw string, err error) {
	var a *targetv1.ScrubResponse
	err = r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) (err error) {
		a, err = c.Scrub(ctx, &targetv1.ScrubRequest{Uuids: uuids, BytesPerSecond: scrubRate})
		return err
	})
	if err != nil || len(a.Shares) == 0 {
		return false, "no share was begun", err
	}
	id, clean := a.Shares[0].Id, !a.UnderWay
	for i, name := range harness.Names {
		var last *targetv1.Scrub
		if err := harness.Wait(ctx, "the scrub of node "+name+" has ended", func() (bool, string) {
			s, err := r.pair.Status(ctx, i)
			if err != nil {
				return false, err.Error()
			}
			last = s.LastScrub
			return last.GetId() == id && !s.Scrub.GetActive(), s.Scrub.String()
		}); err != nil {
			return false, "", err
		}
		clean = clean && last.Reason == "" && last.MismatchedRanges == 0 && last.SkippedRanges == 0
		saw += name + ": " + last.String() + "; "
	}
	return clean, saw, nil
}

// allHealed is the end of a run: nothing damaged is left in anything.
func (r *rig) allHealed(ctx context.Context) error {
	if r.rot.unchecked {
		return nil
	}
	begun := time.Now()
	err := r.scrubbed(ctx, nil)
	fmt.Fprintf(r.w, "scrubs until nothing is left: %v\n", time.Since(begun).Round(time.Millisecond))
	return err
}
