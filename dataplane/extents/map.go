package extents

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gemel-storage/gemel/internal/longlock"
)

// ErrRange: the extent is outside the LUN.
var ErrRange = errors.New("the extent is outside the map")

// Hooks are told of what happens to an open map; any may be nil.
type Hooks struct {
	// Write is asked before a block is written; an error takes the place of the write.
	Write func(path string, off, length int64) error
	// Failed is called once, when a write has failed: what is on the disk is not known any more.
	Failed func(err error)
}

// Map is an open map. Methods are safe for concurrent use; of one extent Set is not called twice at
// a time.
type Map struct {
	path  string
	f     *os.File // O_DSYNC: a write that has returned is durable
	owner Owner
	hooks Hooks
	rule  []uint8

	extents atomic.Int64
	table   atomic.Pointer[[]uint32] // places that are durable, four in a word; its words are atomic

	growing longlock.Mutex // pair 0 is written by one Grow at a time

	mu     sync.Mutex
	moved  *sync.Cond
	pairs  []*pair
	failed error
	closed bool
	writes uint64
}

// pair is two blocks, of which one counts.
type pair struct {
	generation uint64 // of the block that counts
	newer      int    // which one that is
	torn       bool   // the other one did not decode when the file was opened
	want       [PairExtents]uint8
	asked      uint64 // changes of want
	durable    uint64 // of them, those that are durable
	writing    bool
}

func newMap(path string, f *os.File, owner Owner, hooks *Hooks) *Map {
	m := &Map{path: path, f: f, owner: owner}
	if hooks != nil {
		m.hooks = *hooks
	}
	m.moved = sync.NewCond(&m.mu)
	return m
}

func tableLength(extents int64) int64 { return (pairs(extents) - 1) * PairExtents / 4 }

// publish makes the places of a pair readable.
func publish(table []uint32, n int64, places *[PairExtents]uint8) {
	words := table[(n-1)*PairExtents/4:]
	for i := range PairExtents / 4 {
		x := uint32(places[4*i]) | uint32(places[4*i+1])<<8 | uint32(places[4*i+2])<<16 | uint32(places[4*i+3])<<24
		atomic.StoreUint32(&words[i], x)
	}
}

// Rule is the numbers of the volumes over which extents rotate. It is not to be changed.
func (m *Map) Rule() []uint8 { return m.rule }

// Extents is how many the LUN has.
func (m *Map) Extents() int64 { return m.extents.Load() }

// ByRule is the volume that the rule gives to an extent.
func (m *Map) ByRule(extent int64) uint8 { return m.rule[extent%int64(len(m.rule))] }

// At is the number of the volume in which an extent lies, 0 if the LUN has no such extent. It takes
// no lock.
func (m *Map) At(extent int64) uint8 {
	if extent < 0 || extent >= m.extents.Load() {
		return 0
	}
	word := atomic.LoadUint32(&(*m.table.Load())[extent/4])
	if at := uint8(word >> (8 * (extent % 4))); at != 0 {
		return at
	}
	return m.ByRule(extent)
}

// Set says that extents lie in the volume of a number, and returns when that is durable; only then
// At says so. Changes of one pair of blocks that are made at the same time share writes. ErrRange,
// os.ErrClosed; any other error is final, for this call and later ones: it is not known which place
// is on the disk, and At says the former one.
func (m *Map) Set(list []int64, volume uint8) error {
	if volume == 0 {
		return fmt.Errorf("map of extents %s: volume number 0", m.path)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range list {
		if e < 0 || e >= m.extents.Load() {
			return fmt.Errorf("map of extents %s: extent %d of %d: %w", m.path, e, m.extents.Load(), ErrRange)
		}
	}
	if err := m.usable(); err != nil {
		return err
	}
	asked := map[int64]uint64{} // by pair
	for _, e := range list {
		n := 1 + e/PairExtents
		p, at := m.pairs[n], volume
		if volume == m.ByRule(e) {
			at = 0
		}
		if x := &p.want[e%PairExtents]; *x != at {
			*x = at
			p.asked++
		}
		asked[n] = p.asked
	}
	for n, upTo := range asked {
		if err := m.write(n, upTo); err != nil {
			return err
		}
	}
	return nil
}

func (m *Map) usable() error {
	switch {
	case m.failed != nil:
		return m.failed
	case m.closed:
		return fmt.Errorf("map of extents %s: %w", m.path, os.ErrClosed)
	}
	return nil
}

// write returns when so many changes of a pair are durable and can be read. mu is held.
func (m *Map) write(n int64, upTo uint64) error {
	p := m.pairs[n]
	for p.durable < upTo {
		if err := m.usable(); err != nil {
			return err
		}
		if p.writing {
			m.moved.Wait()
			continue
		}
		p.writing = true
		places, now := p.want, p.asked
		m.mu.Unlock()
		err := m.put(n, p, places[:])
		m.mu.Lock()
		if m.ended(p, err); err == nil {
			publish(*m.table.Load(), n, &places)
			p.durable = now
		}
	}
	return nil
}

// ended is the end of a put. mu is held.
func (m *Map) ended(p *pair, err error) {
	if p.writing = false; err != nil {
		m.fail(err)
	} else {
		m.writes++
		p.generation, p.newer, p.torn = p.generation+1, 1-p.newer, false
	}
	m.moved.Broadcast()
}

// put writes the block that does not count. Only one put of a pair runs at a time.
func (m *Map) put(n int64, p *pair, content []byte) error {
	buf := make([]byte, block)
	m.owner.encode(buf, uint32(n), p.generation+1, content)
	off := (2*n + int64(1-p.newer)) * block
	if m.hooks.Write != nil {
		if err := m.hooks.Write(m.path, off, block); err != nil {
			return err
		}
	}
	_, err := m.f.WriteAt(buf, off)
	return err
}

// fail is final. mu is held.
func (m *Map) fail(err error) {
	if m.failed != nil {
		return
	}
	m.failed = fmt.Errorf("map of extents %s: %w", m.path, err)
	if m.hooks.Failed != nil {
		m.hooks.Failed(m.failed)
	}
}

// Grow makes the map that of a LUN of size bytes, durably; new extents lie where the rule says. A
// smaller size changes nothing. For lack of space nothing is changed.
func (m *Map) Grow(size int64) error {
	if err := checkSize(m.path, size); err != nil {
		return err
	}
	m.growing.Lock()
	defer m.growing.Unlock()
	m.mu.Lock()
	err, have := m.usable(), int64(len(m.pairs))
	m.mu.Unlock()
	if err != nil || Extents(size) <= m.extents.Load() {
		return err
	}
	if err := m.lengthen(have, Extents(size)); err != nil {
		return fmt.Errorf("map of extents %s: make it longer: %w", m.path, err) // what is beyond the end is written again
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return err
	}
	head := m.pairs[0]
	head.writing = true
	m.mu.Unlock()
	err = m.put(0, head, headOf(Extents(size), m.rule))
	m.mu.Lock()
	if m.ended(head, err); err != nil {
		return m.failed
	}
	for n := have; n < pairs(Extents(size)); n++ {
		m.pairs = append(m.pairs, &pair{generation: 2, newer: 1})
	}
	table := make([]uint32, tableLength(Extents(size)))
	copy(table, *m.table.Load()) // nothing is published meanwhile
	m.table.Store(&table)        // before there are more extents to look up
	m.extents.Store(Extents(size))
	return nil
}

// lengthen writes the pairs that the file lacks.
func (m *Map) lengthen(have, extents int64) error {
	want := pairs(extents)
	if want <= have {
		return nil
	}
	if m.hooks.Write != nil {
		if err := m.hooks.Write(m.path, 2*have*block, 2*(want-have)*block); err != nil {
			return err
		}
	}
	if err := fill(m.f, &m.owner, m.rule, have, extents, nil); err != nil {
		return err
	}
	return m.f.Sync() // the blocks are, through O_DSYNC; the length of the file with certainty
}

// Torn is how many pairs had a block that did not decode when the map was opened: one that a crash
// tore, or one that was damaged.
func (m *Map) Torn() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pairs {
		if p.torn {
			n++
		}
	}
	return n
}

// Writes is how many blocks were written since Open.
func (m *Map) Writes() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// Close waits for writes that are under way, and closes the file. At goes on to answer.
func (m *Map) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	for _, p := range m.pairs {
		for p.writing {
			m.moved.Wait()
		}
	}
	return m.f.Close()
}

// Failed is why the map cannot be changed any more; nil: it can.
func (m *Map) Failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}
