package nodesim

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"
)

// fences lets one host at a time check that what it has fenced stays fenced.
type fences struct {
	lock chan struct{}

	mu    sync.Mutex
	host  *fencer       // that is fenced
	since time.Duration // and from when on

	changing int // changes of reservations under way
	changed  *sync.Cond

	away      *fencer // that is not mapped
	awaySince time.Duration
}

// change counts changes of reservations under way; unchanged waits for their end.
func (x *fences) change(by int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.changing += by
	x.cond().Broadcast()
}

func (x *fences) unchanged() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.changing > 0 {
		x.cond().Wait()
	}
}

func (x *fences) cond() *sync.Cond {
	if x.changed == nil {
		x.changed = sync.NewCond(&x.mu)
	}
	return x.changed
}

// wrote notes a write that was answered GOOD.
func (x *fences) wrote(f *fencer, began, ended time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.host == f && began > x.since {
		f.w.fail("a write of %s that began at %v is answered GOOD, although the host was fenced at %v", f.name, began, x.since)
	}
	if x.away == f && began > x.awaySince {
		f.w.fail("a write of %s that began at %v is answered GOOD, although the host was unmapped at %v", f.name, began, x.awaySince)
	}
}

func (x *fences) unmapped(f *fencer, now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.away, x.awaySince = f, now
}

func (x *fences) set(f *fencer, now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.host, x.since = f, now
}

// fence takes the LUN from another host by PREEMPT AND ABORT, and looks whether anything of that
// host's comes after the answer.
func (f *fencer) fence(rng *rand.Rand, i int, other *fencer) {
	f.w.fences.lock <- struct{}{}
	defer func() { <-f.w.fences.lock }()
	f.w.fences.unchanged()
	send := func(what string, action, typ byte, key, service uint64) bool {
		return f.exec(i, what, 0, prOut(action, typ), prParam(key, service), nil).ok
	}
	if !send("REGISTER", prRegisterAny, 0, 0, f.key) || !other.known(i) {
		return
	}
	if !send("PREEMPT AND ABORT", prPreemptAbort, registrantsOnly, f.key, other.key) || !send("RESERVE", prReserve, registrantsOnly, f.key, 0) {
		return
	}
	if !f.holds(i, other) {
		return // a command of another host came between
	}
	f.w.fences.set(other, f.w.now())
	defer f.w.fences.set(nil, 0)
	r := rng.IntN(registers)
	first, ok1 := f.read(i, r)
	f.w.pause(rng, 20*time.Millisecond, 60*time.Millisecond)
	second, ok2 := f.read(i, r)
	if !ok1 || !ok2 || !f.holds(i, other) {
		return
	}
	f.w.rare("a fence was checked")
	if first != second && byte(second) == byte(other.id) && second != 0 {
		f.w.fail("register %d of %s changes from %#x to %#x, which %s has written, after PREEMPT AND ABORT by %s was answered", r, f.lun.name, first, second,
			other.name, f.name)
	}
}

// known makes sure that the host is registered.
func (f *fencer) known(i int) bool {
	return f.exec(i, "REGISTER", 0, prOut(prRegisterAny, 0), prParam(0, f.key), nil).ok
}

// holds tells that this host has the reservation and the other one no registration.
func (f *fencer) holds(i int, other *fencer) bool {
	keys, res := make([]byte, 4096), make([]byte, 64)
	k, r := f.exec(i, "READ KEYS", 0, prIn(0), nil, keys), f.exec(i, "READ RESERVATION", 0, prIn(1), nil, res)
	if !k.ok || !r.ok || r.got < 24 || binary.BigEndian.Uint64(res[8:]) != f.key {
		return false
	}
	return !registered(keys[:k.got], other.key)
}

func (f *fencer) read(i, r int) (uint64, bool) {
	b := make([]byte, blockSize)
	if !f.exec(i, "READ", 0, rw16(0x88, offset(r)/f.blockSize(), blockSize/int(f.blockSize())), nil, b).ok {
		return 0, false
	}
	return binary.BigEndian.Uint64(b), true
}
