package nodesim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/pdu"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// fencer is one of several hosts that share a LUN and fence each other: with persistent
// reservations, resets, aborts. It has a session with each node, made again when it is lost, and
// sends each command itself.
type fencer struct {
	w      *world
	id     int
	addr   string
	name   string
	lun    *lun
	key    uint64
	half   bool // data only when asked for: writes are half-sent for a round trip
	bound  time.Duration
	strict bool // nothing fails in this history: sessions must not end

	mu       sync.Mutex
	sessions [2]*initiator.Session
	logins   [2]chan struct{} // who holds it may log in
}

// fenceBound is how long a command may take where nothing fails.
const fenceBound = 8 * time.Second

func newFencer(w *world, id int, l *lun, half, strict bool) *fencer {
	f := &fencer{w: w, id: id, addr: fmt.Sprintf("127.0.1.%d", 100+id), name: hostName(fmt.Sprintf("fence%d", id)), lun: l, key: 0xf0 + uint64(id), half: half,
		bound: ioBound, strict: strict}
	if strict {
		f.bound = fenceBound
	}
	for i := range f.logins {
		f.logins[i] = make(chan struct{}, 1)
	}
	return f
}

// session is the one with a node, made if there is none.
func (f *fencer) session(i int) (*initiator.Session, error) {
	f.logins[i] <- struct{}{}
	defer func() { <-f.logins[i] }()
	f.mu.Lock()
	s := f.sessions[i]
	f.mu.Unlock()
	if s != nil && s.Err() == nil {
		return s, nil
	}
	if s != nil {
		<-s.Done()
		if f.strict && !f.w.isIdle() {
			f.w.fail("a session of %s with node %s ends although nothing fails: %v", f.name, name(i), s.Err())
		}
	}
	// The same ISID each time: registrations are of the nexus (SPC-4 §5.9.7).
	s, err := initiator.Login(context.Background(), initiator.SessionConfig{InitiatorName: f.name, ISID: [6]byte{0x80, 2, 0, byte(f.id), 0, byte(i)}, Target: f.lun.target,
		Portal: portal(i), Timers: initiator.Timers{Command: -1, TMF: 3 * fenceBound}, ForceR2T: f.half, NoImmediateData: f.half,
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return f.w.net.dial(ctx, f.addr, nil, addr)
		}})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.sessions[i] = s
	f.mu.Unlock()
	return s, nil
}

func (f *fencer) close() {
	for _, s := range f.sessions {
		if s != nil {
			s.Close()
			<-s.Done()
		}
	}
}

// drop loses a session, as a host does that has crashed.
func (f *fencer) drop(i int) {
	f.mu.Lock()
	s := f.sessions[i]
	f.sessions[i] = nil
	f.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// answer is how a command ended; ok is GOOD.
type answer struct {
	ok      bool
	status  byte
	sense   initiator.Sense
	got     int
	err     error // it was not answered
	skipped bool  // nothing was sent
}

// exec sends one command, and again while it is not executed for a unit attention.
func (f *fencer) exec(i int, what string, limit time.Duration, cdb, out, in []byte) answer {
	return f.on(f.lun, i, what, limit, cdb, out, in)
}

func (f *fencer) on(l *lun, i int, what string, limit time.Duration, cdb, out, in []byte) (a answer) {
	for range 12 {
		s, err := f.session(i)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			return answer{err: err, skipped: true}
		}
		p := f.w.begin(f.bound, "%s of %s by %s over node %s", what, l.name, f.name, name(i))
		ctx, cancel := context.WithCancel(context.Background())
		if limit > 0 {
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), limit)
		}
		res, err := s.Execute(ctx, l.numberOf(f.name), cdb, out, in)
		cancel()
		took := time.Since(p.since)
		f.w.ended(p, what+" "+l.name)
		f.w.trace("%s: %02x %x/%02x/%02x %v after %v", p.what, res.Status, res.Sense().Key, res.Sense().ASC, res.Sense().ASCQ, err, took)
		if f.strict && took > f.bound {
			f.w.fail("%s took %v", p.what, took)
		}
		if err != nil {
			return answer{err: err}
		}
		a = answer{ok: res.Status == initiator.StatusGood, status: res.Status, got: res.Got}
		if res.Status == initiator.StatusCheckCondition {
			if a.sense = res.Sense(); a.sense.Key == initiator.KeyUnitAttention {
				continue
			}
		}
		return a
	}
	return a
}

// manage sends a task management function.
func (f *fencer) manage(i int, function byte, what string) {
	s, err := f.session(i)
	if err != nil {
		time.Sleep(50 * time.Millisecond)
		return
	}
	p := f.w.begin(f.bound, "%s of %s by %s over node %s", what, f.lun.name, f.name, name(i))
	r, err := s.TaskManagement(context.Background(), function, f.lun.numberOf(f.name))
	took := time.Since(p.since)
	f.w.ended(p, what)
	f.w.trace("%s: %d %v after %v", p.what, r, err, took)
	if f.strict && (err != nil || r != pdu.TMFComplete && r != pdu.TMFNoTask && r != pdu.TMFNoLUN || took > f.bound) {
		f.w.fail("%s is answered %d, %v, after %v although nothing fails", p.what, r, err, took)
	}
	if err == nil && r == pdu.TMFComplete {
		f.w.rare(what)
	}
}

func (f *fencer) blockSize() int64 { return f.w.lunBlock }

// write sends writes until hosts have to stop.
func (f *fencer) write(rng *rand.Rand, v *values) {
	buf := make([]byte, 4*blockSize)
	for !f.w.isIdle() {
		f.w.pause(rng, 0, 24*time.Millisecond)
		i, n := rng.IntN(2), 1+rng.IntN(4)
		block := offset(rng.IntN(registers)) / f.blockSize()
		blocks := n * blockSize / int(f.blockSize())
		limit := time.Duration(0)
		if rng.IntN(12) == 0 {
			limit = time.Duration(1+rng.IntN(4000)) * time.Microsecond // then it is aborted
			f.w.rare("ABORT TASK")
		}
		if rng.IntN(4) == 0 {
			f.exec(i, "READ", limit, rw16(0x88, block, blocks), nil, buf[:n*blockSize])
			continue
		}
		value := v.next()<<8 | uint64(f.id)
		began := f.w.now()
		a := f.exec(i, "WRITE", limit, rw16(0x8a, block, blocks), register.Fill(buf[:n*blockSize], value), nil)
		if a.ok {
			f.w.fences.wrote(f, began, f.w.now())
		}
	}
}

// act reserves, fences, resets and changes modes until hosts have to stop.
func (f *fencer) act(rng *rand.Rand, others []*fencer) {
	for !f.w.isIdle() {
		f.w.pause(rng, time.Millisecond, 80*time.Millisecond)
		i := rng.IntN(2)
		other := others[rng.IntN(len(others))]
		switch k := rng.IntN(24); {
		case k < 5:
			f.pr(i, "REGISTER", prRegisterAny, 0, 0, f.key)
		case k < 7:
			f.pr(i, "RESERVE", prReserve, registrantsOnly, f.key, 0)
		case k < 8:
			f.pr(i, "RELEASE", prRelease, registrantsOnly, f.key, 0)
		case k < 9:
			f.pr(i, "CLEAR", prClear, 0, f.key, 0)
		case k < 10:
			f.pr(i, "PREEMPT", prPreempt, registrantsOnly, f.key, other.key)
		case k < 13:
			f.pr(i, "PREEMPT AND ABORT", prPreemptAbort, registrantsOnly, f.key, other.key)
		case k < 15:
			f.fence(rng, i, other)
		case k < 17:
			f.manage(i, pdu.TMFLogicalUnitReset, "LUN RESET")
		case k < 18:
			f.manage(i, pdu.TMFTargetWarmReset, "TARGET RESET")
		case k < 19:
			f.manage(i, pdu.TMFClearTaskSet, "CLEAR TASK SET")
		case k < 20:
			f.manage(i, pdu.TMFAbortTaskSet, "ABORT TASK SET")
		case k < 21:
			f.mode(rng, i)
		case k < 22:
			if f.exec(i, "RESERVE(6)", 0, []byte{0x16, 0, 0, 0, 0, 0}, nil, nil).ok {
				f.w.rare("RESERVE(6)")
				f.exec(i, "RELEASE(6)", 0, []byte{0x17, 0, 0, 0, 0, 0}, nil, nil)
			}
		case f.strict:
		default:
			f.drop(i)
			f.w.rare("a session dropped")
		}
	}
}

// pr sends a PERSISTENT RESERVE OUT; hosts that are checking whether a fence holds are waited for.
func (f *fencer) pr(i int, what string, action, typ byte, key, service uint64) answer {
	f.w.fences.lock <- struct{}{}
	f.w.fences.change(1)
	<-f.w.fences.lock
	defer f.w.fences.change(-1)
	a := f.exec(i, what, 0, prOut(action, typ), prParam(key, service), nil)
	if a.ok {
		f.w.rare(what)
	}
	return a
}

// mode changes the write cache mode page, saved or not.
func (f *fencer) mode(rng *rand.Rand, i int) {
	page := make([]byte, 255)
	a := f.exec(i, "MODE SENSE", 0, []byte{0x1a, 0x08, 0x0a, 0, 255, 0}, nil, page)
	if !a.ok || a.got < 4+12 {
		return
	}
	list := append(make([]byte, 4), page[4:a.got]...)
	list[4] &= 0x3f   // PS is reserved here
	list[4+2] ^= 0x04 // D_SENSE
	cdb := []byte{0x15, 0x10 | byte(rng.IntN(2)), 0, 0, byte(len(list)), 0}
	if f.exec(i, "MODE SELECT", 0, cdb, list, nil).ok {
		f.w.rare("MODE SELECT")
	}
}

// mix uses a slow LUN and a fast one over one session, whose node is that of the host's number.
func (f *fencer) mix(rng *rand.Rand, cold, hot *lun, worker int) {
	buf := make([]byte, blockSize)
	i := f.id - 1
	for !f.w.isIdle() {
		f.w.pause(rng, 0, 30*time.Millisecond)
		block := (offset(rng.IntN(registers)) + 2*blockSize) / f.blockSize() // beside the registers
		blocks := blockSize / int(f.blockSize())
		switch worker {
		case 0:
			f.on(cold, i, "READ", 0, rw16(0x88, block, blocks), nil, buf)
		case 1:
			f.on(hot, i, "READ", 0, rw16(0x88, block, blocks), nil, buf)
		case 2: // a part of a block, of which the rest has to be read
			f.on(cold, i, "WRITE", 0, rw16(0x8a, block+1, 1), buf[:f.blockSize()], nil)
		default:
			f.on(hot, i, "WRITE", 0, rw16(0x8a, block, blocks), buf, nil)
		}
	}
}
