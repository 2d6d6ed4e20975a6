package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/anishathalye/porcupine"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// swapper is a host that reads a block and replaces what it read with COMPARE AND WRITE. It has
// sessions of its own, since for such a command a multipath layer may not hide that an attempt was
// lost: the second would find what the first wrote. The swapper knows its attempts and says so in
// the history. It also uses the non-optimized path as often as not.
type swapper struct {
	id       int
	r        *recorder
	name     string
	target   string
	portals  []string
	luns     []uint16 // LUN numbers, by index
	blocks   []int64
	size     int // of a block
	path     int
	pinned   bool // never leaves its path
	sessions [2]*initiator.Session
}

func newSwapper(id int, r *recorder, maps []*targetv1.Mapping, blockSize int) *swapper {
	s := &swapper{id: id, r: r, name: maps[0].HostIqn, target: maps[0].TargetIqn, size: blockSize, path: id % 2, blocks: blocksOf(lunSize, blockSize)}
	for _, p := range maps[0].Portals {
		s.portals = append(s.portals, p.Address)
	}
	for _, m := range maps {
		s.luns = append(s.luns, uint16(m.Lun))
	}
	return s
}

func (s *swapper) close() {
	for _, x := range s.sessions {
		if x != nil {
			x.Close()
		}
	}
}

// newWatcher is a host that only reads, over one path whatever its state: it would see what a node
// answers that continues to serve when it must not any more.
func newWatcher(id int, r *recorder, maps []*targetv1.Mapping, blockSize, path int) *swapper {
	s := newSwapper(id, r, maps, blockSize)
	s.path, s.pinned = path, true
	return s
}

// leave goes over to the other path.
func (s *swapper) leave() {
	if !s.pinned {
		s.path = 1 - s.path
	}
}

// attempt is how one command ended.
type attempt struct {
	start int64
	maybe bool // not answered for certain: it may have been executed, or may be still
	err   error
	sense initiator.Sense
	good  bool
}

const (
	opRead16       = 0x88
	opCompareWrite = 0x89
	attemptLimit   = 5 * time.Second
)

func cdb(op byte, block int64) []byte {
	b := make([]byte, 16)
	b[0] = op
	binary.BigEndian.PutUint64(b[2:], uint64(block))
	b[13] = 1 // one block; READ (16) has its length in bytes 10 to 13
	return b
}

// send makes one attempt on the present path and changes the path if this one is no good.
func (s *swapper) send(lun uint16, op byte, block int64, out, in []byte) attempt {
	a := attempt{start: s.r.now()}
	ctx, cancel := context.WithTimeout(context.Background(), attemptLimit)
	defer cancel()
	if s.sessions[s.path] == nil {
		// The same ISID each time: a new session reinstates what is left of the last one on this
		// path (RFC 7143 §6.3.5).
		isid := [6]byte{0x80, 0, 0, byte(s.id), 0, byte(s.path)}
		x, err := initiator.Login(ctx, initiator.SessionConfig{InitiatorName: s.name, ISID: isid, Target: s.target, Portal: s.portals[s.path],
			Timers: initiator.Timers{Dial: time.Second, Login: time.Second}})
		if err != nil {
			a.err = err // nothing was sent
			s.leave()
			return a
		}
		s.sessions[s.path] = x
	}
	x := s.sessions[s.path]
	res, err := x.Execute(ctx, lun, cdb(op, block), out, in)
	switch {
	case err != nil:
		a.err, a.maybe = err, true
		x.Close()
		s.sessions[s.path] = nil
		s.leave()
	case res.Status == initiator.StatusGood:
		a.good = true
	default:
		a.err, a.sense = res.Err(op), res.Sense()
		// A unit attention is reported instead of executing the command (SAM-5 §5.14); a miscompare
		// has not written.
		a.maybe = a.sense.Key != initiator.KeyUnitAttention && a.sense.Key != initiator.KeyMiscompare
		if a.sense.Key == initiator.KeyNotReady {
			s.leave()
		}
	}
	return a
}

// errGaveUp: not answered for as long as the other clients wait.
var errGaveUp = errors.New("no answer on either path")

// complete repeats a command until it is answered, waiting a little between attempts, and returns
// all of them. The last one tells the outcome unless the error is set.
func (s *swapper) complete(rng *rand.Rand, lun uint16, op byte, block int64, out, in []byte) ([]attempt, error) {
	var list []attempt
	deadline := time.Now().Add(ioDeadline)
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		<-t.C
		a := s.send(lun, op, block, out, in)
		if list = append(list, a); a.good || a.sense.Key == initiator.KeyMiscompare {
			return list, nil
		}
		if errors.Is(a.err, initiator.ErrNoSpace) || errors.Is(a.err, initiator.ErrMedium) {
			return list, a.err
		}
		if time.Now().After(deadline) || s.r.abandoned.Load() {
			return list, fmt.Errorf("%w within %v: %w", errGaveUp, ioDeadline, a.err)
		}
		t.Reset(2*time.Millisecond + time.Duration(rng.Int64N(int64(30*time.Millisecond))))
	}
}

// watch reads a block if the path serves; if not, that is nothing to complain of.
func (s *swapper) watch(rng *rand.Rand) {
	i := rng.IntN(len(s.luns))
	k := key{i, pick(rng, s.blocks)}
	buf := make([]byte, s.size)
	a := s.send(s.luns[i], opRead16, k.block, nil, buf)
	if end := s.r.now(); a.good {
		v, err := register.Parse(buf)
		s.r.record(k, s.id, v, err, a.start, end)
	} else if errors.Is(a.err, initiator.ErrMedium) {
		s.r.record(k, s.id, 0, a.err, a.start, end)
	}
}

// one operation: a read, then a swap of what was read or, rarely, of something else.
func (s *swapper) one(rng *rand.Rand, p *progress) {
	i := rng.IntN(len(s.luns))
	k := key{i, pick(rng, s.blocks)}
	buf := make([]byte, s.size)
	if rng.IntN(4) == 0 {
		s.leave()
	}
	start := s.r.now()
	_, err := s.complete(rng, s.luns[i], opRead16, k.block, nil, buf)
	end := s.r.now()
	s.r.ended(p, start, end, "read by session")
	var v uint64
	if err == nil {
		v, err = register.Parse(buf)
	}
	s.r.record(k, s.id, v, err, start, end)
	if err != nil {
		return
	}
	in := register.Input{Kind: register.Swap, Expected: v, Value: s.r.value(k)}
	if rng.IntN(8) == 0 {
		in.Expected = in.Value // no host has written it
	}
	out := append(register.Fill(make([]byte, s.size), in.Expected), register.Fill(make([]byte, s.size), in.Value)...)
	start = s.r.now()
	tries, err := s.complete(rng, s.luns[i], opCompareWrite, k.block, out, nil)
	end = s.r.now()
	s.r.ended(p, start, end, "compare and write")
	excused := err != nil && (s.r.excused(err) || s.r.hurt(k, err, start))
	s.r.add(k, swapOps(s.id, in, tries, err, end, excused)...)
	if err != nil && !excused {
		s.r.failed("compare and write of %v: %w", k, err)
	}
}

// swapOps is the history of a swap: attempts of unknown outcome, which may have taken effect until
// the swap returned, and the last one, of which it is known.
func swapOps(id int, in register.Input, tries []attempt, err error, end int64, excused bool) (ops []porcupine.Operation) {
	for n, a := range tries {
		o := porcupine.Operation{ClientId: id, Input: in, Output: uint64(0), Call: a.start, Return: end}
		if n == len(tries)-1 && err == nil {
			if a.good {
				o.Output = uint64(1)
			}
			ops = append(ops, o)
			continue
		}
		if !a.maybe {
			continue
		}
		in := in
		in.Optional = true
		if o.Input = in; err != nil && !excused {
			o.Return = open
		}
		ops = append(ops, o)
	}
	return ops
}
