package store

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"

	"github.com/google/uuid"
)

// bbolt has checksums of its meta pages only: a value that the disk has changed is a value, and a
// count that is one less is a database without its last keys. So the database holds a checksum of
// its content, which changes with it in one transaction. It is the sum of those of the entries, so
// a change costs what it changes. Those of the entries are kept in memory from the start on: what
// is read is compared with them, and what is replaced need not be read.
const (
	sumBucket = "checksum" // the first one in the order of the file
	sumKey    = "content"

	recordVersion = 1
	recordSize    = 1 + 16 + 8 + 8 + 16 + 4
)

// sum adds up, modulo 2^64 each.
type sum [2]uint64

func (s sum) plus(o sum) sum  { return sum{s[0] + o[0], s[1] + o[1]} }
func (s sum) minus(o sum) sum { return sum{s[0] - o[0], s[1] - o[1]} }

// summer makes checksums of entries. It is not safe for concurrent use.
type summer struct {
	h   hash.Hash
	out [sha256.Size]byte
}

func (s *summer) of(bucket, key string, value []byte) sum {
	if s.h == nil {
		s.h = sha256.New()
	}
	s.h.Reset()
	var n [16]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(bucket)))
	binary.LittleEndian.PutUint64(n[8:], uint64(len(key)))
	for _, b := range [][]byte{n[:], []byte(bucket), []byte(key), value} {
		_, _ = s.h.Write(b)
	}
	b := s.h.Sum(s.out[:0])
	return sum{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// entrySums are those of the entries that the database has to hold.
type entrySums struct {
	summer
	total   sum
	entries map[string]map[string]sum // by bucket and key

	undo  []func() // what the present transaction has changed
	start sum      // total before it
}

func (s *entrySums) begin() { s.start = s.total }

// end keeps what the transaction has changed, or takes it back.
func (s *entrySums) end(keep bool) {
	if !keep {
		for i := len(s.undo) - 1; i >= 0; i-- {
			s.undo[i]()
		}
		s.total = s.start
	}
	clear(s.undo)
	s.undo = s.undo[:0]
}

func (s *entrySums) put(bucket, key string, value []byte) {
	s.remove(bucket, key)
	s.add(bucket, key, value)
	s.undo = append(s.undo, func() { delete(s.entries[bucket], key) })
}

// add is for an entry that is not there yet.
func (s *entrySums) add(bucket, key string, value []byte) {
	if s.entries == nil {
		s.entries = map[string]map[string]sum{}
	}
	if s.entries[bucket] == nil {
		s.entries[bucket] = map[string]sum{}
	}
	x := s.of(bucket, key, value)
	s.entries[bucket][key] = x
	s.total = s.total.plus(x)
}

func (s *entrySums) remove(bucket, key string) {
	old, ok := s.entries[bucket][key]
	if !ok {
		return
	}
	delete(s.entries[bucket], key)
	s.total = s.total.minus(old)
	s.undo = append(s.undo, func() { s.entries[bucket][key] = old })
}

func (s *entrySums) drop(bucket string) {
	old := s.entries[bucket]
	for _, x := range old {
		s.total = s.total.minus(x)
	}
	delete(s.entries, bucket)
	s.undo = append(s.undo, func() { s.entries[bucket] = old })
}

// holds tells whether a value is the one that has to be there; nil: none.
func (s *entrySums) holds(bucket, key string, value []byte) bool {
	want, ok := s.entries[bucket][key]
	if !ok || value == nil {
		return !ok && value == nil
	}
	return s.of(bucket, key, value) == want
}

// record is the checksum as the database holds it, with what the content belongs to.
type record struct {
	store uuid.UUID
	txid  uint64 // of the transaction that wrote it: a release without checksums has written since if there was another one
	seq   uint64 // counts the transactions of releases with checksums: see metaMark
	total sum
}

var errRecord = errors.New("the checksum of its content cannot be read")

func (r *record) encode() []byte {
	b := make([]byte, 0, recordSize)
	b = append(b, recordVersion)
	b = append(b, r.store[:]...)
	for _, n := range []uint64{r.txid, r.seq, r.total[0], r.total[1]} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeRecord(b []byte) (r record, err error) {
	if len(b) < 5 || crc32.Checksum(b[:len(b)-4], castagnoli) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return r, errRecord
	}
	if b[0] > recordVersion {
		return r, fmt.Errorf("%w: its checksum has version %d, this release supports %d; run the release that wrote it, or a newer one", ErrNewer, b[0], recordVersion)
	}
	if b[0] != recordVersion || len(b) != recordSize {
		return r, errRecord
	}
	copy(r.store[:], b[1:])
	b = b[17:]
	for _, n := range []*uint64{&r.txid, &r.seq, &r.total[0], &r.total[1]} {
		*n = binary.LittleEndian.Uint64(b)
		b = b[8:]
	}
	return r, nil
}
