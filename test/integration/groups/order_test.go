package groups

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
)

// chain is a writer that writes record k, to any LUN, only after record k-1 was acknowledged on
// another one: what crash consistency through many LUNs is for.
type chain struct {
	id    int
	mu    sync.Mutex
	where []place // by record, from 1
	acked atomic.Uint64
}

// place is a block of a member.
type place struct{ member, block int }

// chains write until they are stopped.
type chains struct {
	r    *rig
	list []*chain
	stop atomic.Bool
	wg   sync.WaitGroup
}

// span is how many blocks of a LUN a chain writes to, round and round.
const span = 2000

func (r *rig) write(n int) *chains {
	c := &chains{r: r}
	for i := range n {
		x := &chain{id: i, where: []place{{}}}
		c.list = append(c.list, x)
		c.wg.Go(func() { c.run(x) })
	}
	r.t.Cleanup(c.end)
	return c
}

func (c *chains) end() {
	c.stop.Store(true)
	c.wg.Wait()
}

func (c *chains) run(x *chain) {
	rnd := rand.New(rand.NewPCG(*seed, uint64(x.id)))
	next := make([]int, len(c.r.members))
	for k := uint64(1); !c.stop.Load(); k++ {
		m := rnd.IntN(len(next))
		at := place{m, x.id*span + next[m]%span}
		next[m]++
		x.mu.Lock()
		x.where = append(x.where, at)
		x.mu.Unlock()
		b := make([]byte, block)
		binary.LittleEndian.PutUint64(b, k)
		if _, err := c.r.members[m].dev.WriteAt(c.r.ctx, b, int64(at.block)*block); err != nil {
			if !c.stop.Load() {
				c.r.t.Errorf("chain %d, record %d: %v", x.id, k, err)
			}
			return
		}
		x.acked.Store(k)
	}
}

// acked is the last record of each chain that was acknowledged.
func (c *chains) acked() (out []uint64) {
	for _, x := range c.list {
		out = append(out, x.acked.Load())
	}
	return out
}

// violation says why the snapshots of all members, as files have them, show no prefix of a chain,
// or one without a record that was acknowledged before.
func (c *chains) violation(files []*os.File, before []uint64) error {
	for i, x := range c.list {
		if err := x.prefix(files, before[i]); err != nil {
			return fmt.Errorf("chain %d: %w", x.id, err)
		}
	}
	return nil
}

func (x *chain) prefix(files []*os.File, before uint64) error {
	x.mu.Lock()
	where := append([]place(nil), x.where...)
	x.mu.Unlock()
	has := map[place]uint64{}
	last := uint64(0)
	b := make([]byte, block)
	for _, at := range where[1:] {
		if _, ok := has[at]; ok {
			continue
		}
		if _, err := files[at.member].ReadAt(b, int64(at.block)*block); err != nil {
			return err
		}
		has[at] = binary.LittleEndian.Uint64(b)
		last = max(last, has[at])
	}
	if last >= uint64(len(where)) {
		return fmt.Errorf("record %d was never written", last)
	}
	want := map[place]uint64{}
	for k, at := range where[:last+1] {
		if k > 0 {
			want[at] = uint64(k)
		}
	}
	for at, v := range has {
		if v != want[at] {
			return fmt.Errorf("member %d has record %d at block %d, and should have %d: the last one anywhere is %d", at.member, v, at.block, want[at], last)
		}
	}
	if last < before {
		return fmt.Errorf("the last record is %d, and %d was acknowledged before anything was held", last, before)
	}
	return nil
}
