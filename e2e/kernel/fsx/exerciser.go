package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxSize   = 4 << 20   // bytes of the file
	maxLength = 128 << 10 // of one operation
	pageSize  = 4096
	kept      = 40 // operations that are printed with a failure
)

// exerciser does things to a file and knows what must be in it.
type exerciser struct {
	f     *os.File
	want  []byte // the file's content
	r     *rand.Rand
	last  []string
	spare []byte
}

func open(path string, seed uint64) (*exerciser, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &exerciser{f: f, r: rand.New(rand.NewPCG(seed, 0)), spare: make([]byte, maxSize)}, nil
}

// operation is done to length bytes from offset, which may lie beyond the end.
type operation struct {
	name   string
	weight int
	do     func(x *exerciser, offset, length int) error
}

var operations = []operation{
	{"write", 20, (*exerciser).write},
	{"read", 20, (*exerciser).read},
	{"map-write", 12, (*exerciser).mapWrite},
	{"map-read", 8, (*exerciser).mapRead},
	{"truncate", 5, (*exerciser).truncate},
	{"punch", 8, func(x *exerciser, o, n int) error {
		return x.zero(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, o, n)
	}},
	{"zero", 6, func(x *exerciser, o, n int) error { return x.zero(unix.FALLOC_FL_ZERO_RANGE, o, n) }},
	{"zero-keep", 4, func(x *exerciser, o, n int) error {
		return x.zero(unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, o, n)
	}},
	{"sync", 4, func(x *exerciser, _, _ int) error { return x.f.Sync() }},
	{"drop", 3, func(x *exerciser, _, _ int) error { return x.drop() }},
}

func (x *exerciser) step() error {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	k := x.r.IntN(total)
	for _, o := range operations {
		if k -= o.weight; k >= 0 {
			continue
		}
		offset, length := x.r.IntN(maxSize), 1+x.r.IntN(maxLength)
		if x.r.IntN(4) == 0 { // also what is aligned
			offset, length = offset/pageSize*pageSize, (length+pageSize-1)/pageSize*pageSize
		}
		length = min(length, maxSize-offset)
		if x.last = append(x.last, fmt.Sprintf("%s %d+%d, size %d", o.name, offset, length, len(x.want))); len(x.last) > kept {
			x.last = x.last[1:]
		}
		if err := o.do(x, offset, length); err != nil {
			return fmt.Errorf("%w; the last operations were:\n%s", err, strings.Join(x.last, "\n"))
		}
		return nil
	}
	panic("no operation")
}

// within is the part of a range that lies in the file.
func (x *exerciser) within(offset, length int) []byte {
	from := min(offset, len(x.want))
	return x.want[from:min(offset+length, len(x.want))]
}

func (x *exerciser) grow(size int) {
	if size > len(x.want) {
		x.want = append(x.want, make([]byte, size-len(x.want))...)
	}
}

func (x *exerciser) fill(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, x.r.Uint64())
	}
	for i := range b {
		b[i] = byte(x.r.Uint32())
	}
}

func (x *exerciser) write(offset, length int) error {
	b := x.spare[:length]
	x.fill(b)
	x.grow(offset + length)
	copy(x.want[offset:], b)
	_, err := x.f.WriteAt(b, int64(offset))
	return err
}

func (x *exerciser) read(offset, length int) error {
	b := x.spare[:length]
	n, err := x.f.ReadAt(b, int64(offset))
	if err != nil && err != io.EOF {
		return err
	}
	return same("read", offset, b[:n], x.within(offset, length))
}

// mapped calls f with a range of the file in memory, and the same range as it should be.
func (x *exerciser) mapped(offset, length int, f func(have, want []byte) error) error {
	want := x.within(offset, length)
	if len(want) == 0 {
		return nil
	}
	begin := offset / pageSize * pageSize
	m, err := unix.Mmap(int(x.f.Fd()), int64(begin), offset-begin+len(want), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	err = f(m[offset-begin:], want)
	if err == nil && x.r.IntN(4) == 0 {
		err = unix.Msync(m, unix.MS_SYNC)
	}
	if err := unix.Munmap(m); err != nil {
		return fmt.Errorf("munmap: %w", err)
	}
	return err
}

func (x *exerciser) mapWrite(offset, length int) error {
	return x.mapped(offset, length, func(have, want []byte) error {
		x.fill(want)
		copy(have, want)
		return nil
	})
}

func (x *exerciser) mapRead(offset, length int) error {
	return x.mapped(offset, length, func(have, want []byte) error { return same("map", offset, have, want) })
}

func (x *exerciser) truncate(size, _ int) error {
	x.grow(size)
	x.want = x.want[:size]
	return x.f.Truncate(int64(size))
}

func (x *exerciser) zero(mode uint32, offset, length int) error {
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		x.grow(offset + length)
	}
	clear(x.within(offset, length))
	if err := unix.Fallocate(int(x.f.Fd()), mode, int64(offset), int64(length)); err != nil {
		return fmt.Errorf("fallocate: %w", err)
	}
	return nil
}

// drop makes the next reads come from the device.
func (x *exerciser) drop() error {
	if err := x.f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(x.f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// whole compares the whole file as it is on the device.
func (x *exerciser) whole() error {
	if err := x.drop(); err != nil {
		return err
	}
	have := make([]byte, maxSize+1)
	n, err := x.f.ReadAt(have, 0)
	if err != nil && err != io.EOF {
		return err
	}
	return same("whole", 0, have[:n], x.want)
}

func same(how string, offset int, have, want []byte) error {
	if bytes.Equal(have, want) {
		return nil
	}
	for i := range min(len(have), len(want)) {
		if have[i] != want[i] {
			return fmt.Errorf("%s: byte %d is %#02x, should be %#02x", how, offset+i, have[i], want[i])
		}
	}
	return fmt.Errorf("%s: %d bytes from %d, should be %d", how, len(have), offset, len(want))
}
