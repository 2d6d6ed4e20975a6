package sums

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/uuid"
)

// A ram is a medium that can lose power: what was not flushed is there or not, each sector of 512
// bytes by itself.
type ram struct {
	mu      sync.Mutex
	now     []byte // what is read
	durable []byte // what a loss of power leaves for certain
	fail    func(op string) error
	late    func(op string) // called at the end of an operation, before its caller knows of it
	flushes int
}

func (r *ram) ask(op string) error {
	if r.fail == nil {
		return nil
	}
	return r.fail(op)
}

func (r *ram) ReadAt(p []byte, off int64) (int, error) {
	if r.late != nil {
		defer r.late("read")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ask("read"); err != nil {
		return 0, err
	}
	if off >= int64(len(r.now)) {
		return 0, io.EOF
	}
	n := copy(p, r.now[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (r *ram) WriteAt(p []byte, off int64) (int, error) {
	if r.late != nil {
		defer r.late("write")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ask("write"); err != nil {
		return 0, err
	}
	if off+int64(len(p)) > int64(len(r.now)) {
		return 0, errors.New("a write beyond the end")
	}
	return copy(r.now[off:], p), nil
}

func (r *ram) Zero(off, length int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ask("zero"); err != nil {
		return err
	}
	clear(r.now[off : off+length])
	return nil
}

func (r *ram) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ask("sync"); err != nil {
		return err
	}
	r.flushes++
	r.durable = append(r.durable[:0], r.now...)
	return nil
}

func (r *ram) Extend(size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.ask("extend"); err != nil {
		return err
	}
	r.now = append(r.now, make([]byte, max(0, size-int64(len(r.now))))...)[:size]
	return nil
}

func (r *ram) Keep(off, length int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if off < 0 || length <= 0 || off+length > int64(len(r.now)) {
		return errors.New("space beyond the end")
	}
	return r.ask("keep")
}

func (r *ram) Close() error { return nil }

// powerLoss is the medium after one: every sector is what was flushed last, or what was written
// since.
func (r *ram) powerLoss(rnd *rand.Rand) *ram {
	x := &ram{now: append([]byte(nil), r.now...)}
	for at := 0; at < len(x.now); at += sectorSize {
		if rnd.IntN(2) == 0 {
			sector := x.now[at:min(at+sectorSize, len(x.now))]
			clear(sector)
			if at < len(r.durable) {
				copy(sector, r.durable[at:])
			}
		}
	}
	x.durable = append([]byte(nil), x.now...)
	return x
}

var testOwner = Owner{uuid.MustParse("6f1c1c6e-52ad-4b33-9d32-000000000001"), uuid.MustParse("6f1c1c6e-52ad-4b33-9d32-0000000000ff")}

// newRAM is a medium with a file for an object of size bytes.
func newRAM(t testing.TB, size int64, known bool) *ram {
	r := &ram{}
	h := header{owner: testOwner, seed: seed{1, 2, 3}}
	if known {
		h.adopted = AllAdopted
	}
	if err := errors.Join(r.Extend(fileSize(Blocks(size))), h.write(r), r.Sync()); err != nil {
		t.Fatal(err)
	}
	return r
}

func openRAM(t testing.TB, c *Cache, r *ram, size int64) *File {
	t.Helper()
	f, err := open(c, "ram", r, testOwner, size)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// block is content number n of a block; 0 is zeroes.
func block(n uint32) []byte {
	p := make([]byte, BlockSize)
	if n != 0 {
		r := rand.New(rand.NewPCG(uint64(n), 1))
		for i := 0; i < len(p); i += 8 {
			binary.LittleEndian.PutUint64(p[i:], r.Uint64())
		}
	}
	return p
}

func crcLE(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

func crcOf(p []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crcLE(p)) }
