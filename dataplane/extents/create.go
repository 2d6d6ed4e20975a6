package extents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/gemel-storage/gemel/internal/fd"
)

// MaxSize is the largest LUN that has a map, in bytes: that of write-intent bits.
const MaxSize = 256 << 40

// tmpSuffix is of files that are being made; the next attempt overwrites one that a crash leaves.
const tmpSuffix = ".tmp"

// Extents is how many a LUN of size bytes has; the last one may be shorter.
func Extents(size int64) int64 { return (size + Size - 1) / Size }

// pairs is how many pairs of blocks so many extents need, that of the rule included.
func pairs(extents int64) int64 { return 1 + (extents+PairExtents-1)/PairExtents }

func checkSize(path string, size int64) error {
	if size <= 0 || size > MaxSize {
		return fmt.Errorf("map of extents %s: a LUN of %d bytes, want 1 to %d", path, size, int64(MaxSize))
	}
	return nil
}

// Create makes the map of a LUN of size bytes, durably, in place of one that is there. rule has the
// numbers of 1 to 255 volumes, each from 1 to 255. All of the file is written, so that no later
// change needs space.
func Create(path string, owner Owner, rule []uint8, size int64) error {
	return CreateWith(path, owner, rule, size, nil)
}

// CreateWith is Create of a map that has extents in other places than the rule says, from the
// beginning: places has the volume of each, 0 where the rule says, and may be shorter.
func CreateWith(path string, owner Owner, rule []uint8, size int64, places []uint8) error {
	if err := checkSize(path, size); err != nil {
		return err
	}
	if len(rule) == 0 || len(rule) > 255 || slices.Contains(rule, 0) {
		return fmt.Errorf("map of extents %s: the rule has %d volumes, want 1 to 255, none with number 0", path, len(rule))
	}
	f, err := os.OpenFile(path+tmpSuffix, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("create the map of extents: %w", err)
	}
	if err = fill(f, &owner, rule, 0, Extents(size), places); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+tmpSuffix, path)
	}
	if err != nil {
		return fmt.Errorf("create the map of extents: %w", errors.Join(err, os.Remove(path+tmpSuffix)))
	}
	return fd.SyncDir(filepath.Dir(path))
}

// fill writes the pairs from one on, as they are when nothing but places differs from the rule:
// both blocks, so that each has its space.
func fill(f *os.File, o *Owner, rule []uint8, from, extents int64, places []uint8) error {
	buf := make([]byte, 2*block)
	for n := from; n < pairs(extents); n++ {
		content := headOf(extents, rule)
		if n > 0 {
			content = make([]byte, PairExtents)
			for i := range content {
				e := (n-1)*PairExtents + int64(i)
				if e >= int64(len(places)) {
					break
				}
				if v := places[e]; v != rule[e%int64(len(rule))] {
					content[i] = v
				}
			}
		}
		o.encode(buf[:block], uint32(n), 1, content)
		o.encode(buf[block:], uint32(n), 2, content)
		if _, err := f.WriteAt(buf, 2*n*block); err != nil {
			return err
		}
	}
	return nil
}

// headOf is what pair 0 holds.
func headOf(extents int64, rule []uint8) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(extents)), rule...)
}

// Open opens the map of a LUN of size bytes, and makes it longer if a crash came before it was.
// fs.ErrNotExist: there is none; ErrDamaged: it does not say where all extents lie. hooks may be
// nil.
func Open(path string, owner Owner, size int64, hooks *Hooks) (_ *Map, err error) {
	if err := checkSize(path, size); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_DSYNC, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	m := newMap(path, f, owner, hooks)
	if err := m.load(); err != nil {
		return nil, err
	}
	if err := m.Grow(size); err != nil {
		return nil, err
	}
	return m, nil
}

// Read reads a map of which no place is changed: a Map that only answers. Errors are those of Open.
func Read(path string, owner Owner) (*Map, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	m := newMap(path, f, owner, nil)
	m.closed = true
	return m, errors.Join(m.load(), f.Close())
}

// Names says whether the map has any extent in the volume of a number.
func (m *Map) Names(volume uint8) bool {
	for e := range m.Extents() {
		if m.At(e) == volume {
			return true
		}
	}
	return false
}

// load reads what the file says that it has.
func (m *Map) load() error {
	head, content, err := m.read(0)
	if err != nil {
		return err
	}
	if len(content) < 9 || slices.Contains(content[8:], 0) {
		return fmt.Errorf("%w: %s has no rule", ErrDamaged, m.path)
	}
	extents := int64(binary.LittleEndian.Uint64(content))
	if extents <= 0 || extents > Extents(MaxSize) {
		return fmt.Errorf("%w: %s has %d extents", ErrDamaged, m.path, extents)
	}
	m.rule = slices.Clone(content[8:])
	m.pairs = append(m.pairs, head)
	table := make([]uint32, tableLength(extents))
	for n := int64(1); n < pairs(extents); n++ {
		p, content, err := m.read(n)
		if err != nil {
			return err
		}
		if len(content) != PairExtents {
			return fmt.Errorf("%w: %s: pair %d has %d extents", ErrDamaged, m.path, n, len(content))
		}
		copy(p.want[:], content)
		publish(table, n, &p.want)
		m.pairs = append(m.pairs, p)
	}
	m.table.Store(&table)
	m.extents.Store(extents)
	return nil
}

// read reads a pair, and finds the block that counts. Two of one generation cannot be.
func (m *Map) read(n int64) (*pair, []byte, error) {
	buf := make([]byte, 2*block)
	if _, err := m.f.ReadAt(buf, 2*n*block); errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("%w: %s ends before pair %d", ErrDamaged, m.path, n)
	} else if err != nil {
		return nil, nil, fmt.Errorf("map of extents %s: read pair %d: %w", m.path, n, err)
	}
	a, contentA, errA := m.owner.decode(buf[:block], uint32(n))
	b, contentB, errB := m.owner.decode(buf[block:], uint32(n))
	switch {
	case errA != nil && errB != nil:
		return nil, nil, fmt.Errorf("%w: %s: pair %d: %w; %w", ErrDamaged, m.path, n, errA, errB)
	case errA == nil && errB == nil && a == b:
		return nil, nil, fmt.Errorf("%w: %s: pair %d: two blocks of generation %d", ErrDamaged, m.path, n, a)
	case errB != nil || errA == nil && a > b:
		return &pair{generation: a, newer: 0, torn: errB != nil}, contentA, nil
	}
	return &pair{generation: b, newer: 1, torn: errA != nil}, contentB, nil
}
