package node

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// damageTally counts what became of damaged blocks, and keeps the last findings for those who ask.
// Ten thousand blocks that are healed at once are one finding: they are put together while they
// come within damageTime, and then reported with a number, so that a reader who has seen a number
// has seen all of it. It is kept in memory: nothing depends on it, and each block is in the log.
type damageTally struct {
	mu      sync.Mutex
	process string
	healed  uint64 // blocks
	lost    uint64
	number  uint64          // of the last finding that was reported
	open    []damageFinding // not reported yet, in the order in which they began
	told    []damageFinding
	known   map[lostBlock]time.Time // lost blocks, and when each was counted
}

type damageFinding struct {
	n           uint64
	lun         pair.LUNID
	lost        bool
	blocks      uint64
	first, last int64 // offset in bytes of the first and the last block seen
	began, at   time.Time
}

type lostBlock struct {
	lun pair.LUNID
	off int64
}

// How long blocks are put together, how many findings are kept, after what time a lost block that
// is read again is reported again (events of Kubernetes are gone by then), and how many of them are
// remembered for that.
const (
	damageTime   = 5 * time.Second
	maxDamage    = 128
	lostAgain    = time.Hour
	maxLostKnown = 1 << 14
)

// add counts what an event tells.
func (d *damageTally) add(x *pair.Damage, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.close(now)
	for _, r := range x.Runs {
		for off := r.Off; off < r.Off+r.Len; off += pair.DefaultBlock {
			if x.Lost && !d.fresh(lostBlock{x.LUN, off}, now) {
				continue
			}
			if x.Lost {
				d.lost++
			} else {
				d.healed++
			}
			i := slices.IndexFunc(d.open, func(f damageFinding) bool { return f.lun == x.LUN && f.lost == x.Lost })
			if i < 0 {
				i = len(d.open)
				d.open = append(d.open, damageFinding{lun: x.LUN, lost: x.Lost, first: off, began: now})
			}
			f := &d.open[i]
			f.blocks, f.last, f.at = f.blocks+1, off, now
		}
	}
}

// fresh reports whether a lost block is to be counted: hosts ask again and again for what they do
// not get.
func (d *damageTally) fresh(b lostBlock, now time.Time) bool {
	if at, ok := d.known[b]; ok && now.Sub(at) < lostAgain {
		return false
	}
	if d.known == nil {
		d.known = map[lostBlock]time.Time{}
	}
	if len(d.known) >= maxLostKnown { // forgets: reporting a block twice is better than not reporting it
		for k, at := range d.known {
			if now.Sub(at) >= lostAgain {
				delete(d.known, k)
			}
		}
		if len(d.known) >= maxLostKnown {
			clear(d.known)
		}
	}
	d.known[b] = now
	return true
}

// close numbers the findings whose time is over.
func (d *damageTally) close(now time.Time) {
	over := 0
	for over < len(d.open) && now.Sub(d.open[over].began) >= damageTime {
		d.number++
		d.open[over].n = d.number
		over++
	}
	d.told = append(d.told, d.open[:over]...)
	d.open = slices.Delete(d.open, 0, over)
	if k := len(d.told) - maxDamage; k > 0 {
		d.told = slices.Delete(d.told, 0, k)
	}
}

// proto is what has been reported until now: the counters are those of the findings, so that the
// difference between two answers is what the findings between them say.
func (d *damageTally) proto(now time.Time) *targetv1.Checksums {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.close(now)
	if d.process == "" {
		d.process = strconv.FormatUint(rand.Uint64(), 36)
	}
	p := &targetv1.Checksums{Process: d.process, HealedBlocks: d.healed, LostBlocks: d.lost}
	for _, f := range d.open {
		if f.lost {
			p.LostBlocks -= f.blocks
		} else {
			p.HealedBlocks -= f.blocks
		}
	}
	for _, f := range d.told {
		p.Findings = append(p.Findings, &targetv1.DamageFinding{Number: f.n, Uuid: f.lun.String(), Lost: f.lost, Blocks: f.blocks, Offset: uint64(f.first),
			LastOffset: uint64(f.last), Time: timestamppb.New(f.at)})
	}
	return p
}

// checksums is what GetStatus says of them; nil: there are none.
func (n *Node) checksums() *targetv1.Checksums {
	if n.cfg.NoChecksums {
		return nil
	}
	p := n.seen.damage.proto(time.Now())
	done, total, _ := n.adopted()
	p.TotalBytes, p.CoveredBytes = uint64(total), uint64(done)
	return p
}
