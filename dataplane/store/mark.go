package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// A backing volume beside the default one has a number that moves on together with the node's own
// state, which is in the metadata database (R6): a volume that was put back to an earlier state,
// alone or with some of the rest, has another mark than the database says. The number is made
// durable here before it is there, so after a crash it may be one ahead.
//
// The file has two blocks, written in turn, so that a torn write leaves the number before; both are
// allocated when it is made, so that it never fails for space.
const (
	markName  = "mark"
	markBlock = 4096
	markMagic = 0x676d6c6d61726b31
)

type markFile struct {
	v    *BackingVolume
	f    *os.File // O_DSYNC
	read uint64   // when it was opened
}

// makeMark writes the file of a new volume, durably.
func makeMark(dir string) error {
	buf := make([]byte, 2*markBlock)
	encodeMark(buf, 0)
	encodeMark(buf[markBlock:], 0)
	return writeFileDurably(filepath.Join(dir, markName), buf)
}

func encodeMark(b []byte, n uint64) {
	binary.BigEndian.PutUint64(b, markMagic)
	binary.BigEndian.PutUint64(b[8:], n)
	binary.BigEndian.PutUint32(b[16:], crc32.ChecksumIEEE(b[:16]))
}

// decodeMark is false for a block that is not whole.
func decodeMark(b []byte) (uint64, bool) {
	if len(b) < 20 || binary.BigEndian.Uint64(b) != markMagic || binary.BigEndian.Uint32(b[16:]) != crc32.ChecksumIEEE(b[:16]) {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[8:]), true
}

// openMark reads the number. One that is lost or cannot be read is 0, which no volume that holds
// something has.
func openMark(v *BackingVolume) (*markFile, error) {
	path := filepath.Join(v.dir, markName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := makeMark(v.dir); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_DSYNC, 0)
	if err != nil {
		return nil, err
	}
	m := &markFile{v: v, f: f}
	eachBlock(f, func(b []byte) {
		if n, ok := decodeMark(b); ok {
			m.read = max(m.read, n)
		}
	})
	return m, nil
}

// eachBlock reads the two blocks of a mark. A block that cannot be read is left out.
func eachBlock(f *os.File, look func(b []byte)) {
	buf := make([]byte, markBlock)
	for i := range int64(2) {
		if _, err := io.ReadFull(io.NewSectionReader(f, i*markBlock, markBlock), buf); err == nil {
			look(buf)
		}
	}
}

func (m *markFile) write(n uint64) error {
	rel := filepath.Join(m.v.rel, markName)
	buf := make([]byte, markBlock)
	encodeMark(buf, n)
	err := m.v.s.fault(FaultMark, rel, int64(n%2)*markBlock, markBlock)
	if err == nil {
		_, err = m.f.WriteAt(buf, int64(n%2)*markBlock)
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w: %w", rel, ErrMedia, err)
		m.v.s.fail(err)
	}
	return err
}

// Mark is the number that the volume had when it was opened; always 0 of the default one, which has
// the database beside it.
func (v *BackingVolume) Mark() uint64 {
	if v.mark == nil {
		return 0
	}
	return v.mark.read
}

// SetMarks gives every volume beside the default one the next number, durably. The numbers follow
// each other, or a torn write could take the block that counts. A failure makes the store untrusted
// (R12).
func (s *Store) SetMarks(n uint64) error {
	var all sync.WaitGroup
	list := s.Directories()
	errs := make([]error, len(list))
	for i, v := range list {
		if v.mark != nil {
			all.Go(func() { errs[i] = v.mark.write(n) })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}
