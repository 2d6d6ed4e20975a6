package store

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// metaMark is beside the LUNs and not beside the database: it says how far the database had come,
// so that one that was put back to an earlier state, without the rest of the store, is recognised
// (R6). It is written after each commit and not flushed, which costs next to nothing: after a power
// cut it may be behind, which is no sign of damage, and a person who puts back a backup comes later
// than the kernel's writeback.
//
// The file has two blocks, written in turn, so that a torn write leaves the one before; both are
// allocated when it is made.
type metaMark struct {
	path string
	f    *os.File // nil: there is none yet
	last markState
}

// markState is what the mark says: the count of transactions and the number of the last one.
type markState struct{ seq, txid uint64 }

const (
	metaMarkName  = "meta.mark"
	metaMarkMagic = 0x676d6c6d6d726b31
	metaMarkSize  = 28
)

func (m markState) encode(b []byte) {
	binary.BigEndian.PutUint64(b, metaMarkMagic)
	binary.BigEndian.PutUint64(b[8:], m.seq)
	binary.BigEndian.PutUint64(b[16:], m.txid)
	binary.BigEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli))
}

// decodeMetaMark is false for a block that is not whole.
func decodeMetaMark(b []byte) (m markState, ok bool) {
	if len(b) < metaMarkSize || binary.BigEndian.Uint64(b) != metaMarkMagic || binary.BigEndian.Uint32(b[24:]) != crc32.Checksum(b[:24], castagnoli) {
		return m, false
	}
	return markState{seq: binary.BigEndian.Uint64(b[8:]), txid: binary.BigEndian.Uint64(b[16:])}, true
}

// openMetaMark reads the mark in a folder. One that cannot be read says nothing.
func openMetaMark(dir string) (*metaMark, error) {
	m := &metaMark{path: filepath.Join(dir, metaMarkName)}
	f, err := os.OpenFile(m.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	m.f = f
	eachBlock(f, func(b []byte) {
		if s, ok := decodeMetaMark(b); ok && s.seq >= m.last.seq {
			m.last = s
		}
	})
	return m, nil
}

// write takes the mark on, and makes it first where there is none.
func (m *metaMark) write(s markState) error {
	if m.f == nil {
		return m.make(s)
	}
	buf := make([]byte, markBlock)
	s.encode(buf)
	if _, err := m.f.WriteAt(buf, int64(s.seq%2)*markBlock); err != nil {
		return err
	}
	m.last = s
	return nil
}

func (m *metaMark) make(s markState) error {
	buf := make([]byte, 2*markBlock)
	s.encode(buf[s.seq%2*markBlock:])
	err := writeFileDurably(m.path, buf)
	if err != nil {
		return err
	}
	if m.f, err = os.OpenFile(m.path, os.O_RDWR, 0); err == nil {
		m.last = s
	}
	return err
}

func (m *metaMark) close() error {
	if m.f == nil {
		return nil
	}
	return m.f.Close()
}
