package nodesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

func hostName(s string) string { return iqnHost + s }

// userAddr is the address of the host of a user.
func userAddr(id int) string { return fmt.Sprintf("127.0.1.%d", 1+id) }

// Registers are blocks of a LUN, in different regions, that hosts write values to which are never
// used twice.
const (
	blockSize = 4096
	registers = 6
)

func offset(r int) int64 { return int64(r)*(5<<20) + int64(r)*blockSize }

// history is what hosts saw of the registers of one LUN.
type history struct {
	mu  sync.Mutex
	ops [registers][]porcupine.Operation
}

func (h *history) add(r int, ops ...porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[r] = append(h.ops[r], ops...)
}

// judge says whether one disk could have given these answers.
func (h *history) judge(w *world, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r, ops := range h.ops {
		if a := register.Check(0, ops); a != nil {
			w.fail("%s register %d cannot be explained (lost %v, unknown %v):\n%s", name, r, a.Lost, a.Unknown, a.Text)
		}
	}
}

// values are never used twice.
type values struct{ last atomic.Uint64 }

func (v *values) next() uint64 { return v.last.Add(1) }

// user is one host with a device over all paths, and workers that use it.
type user struct {
	w      *world
	id     int
	addr   string
	name   string
	lun    *lun
	h      *history
	dev    *initiator.Device
	bound  time.Duration // of one operation, once nothing fails any more
	events atomic.Int64
}

// ioBound is how long an operation may take once nothing fails any more: it may have to wait for a
// node to come back.
const ioBound = 45 * time.Second

func (u *user) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	return u.w.net.dial(ctx, u.addr, nil, addr)
}

// open waits for the device. ping is how long an answer to a ping may take.
func (u *user) open(ping time.Duration) error {
	d, err := initiator.Open(context.Background(), initiator.Config{InitiatorName: u.name, ISID: [6]byte{0x80, 1, 0, byte(u.id), 0, 0}, Target: u.lun.target,
		Portals: []string{portal(0), portal(1)}, LUN: u.lun.numberOf(u.name), WWID: u.lun.wwid, Deadline: 10 * time.Minute, Dial: u.dial,
		Timers: initiator.Timers{Command: -1, PingTimeout: ping}, Events: u.event})
	u.dev = d
	return err
}

// event notes what may have led to a retry. No host resets the LUNs of these hosts.
func (u *user) event(e initiator.Event) {
	u.w.trace("%s: %+v", u.name, e)
	switch {
	case e.Kind == initiator.EventUnitAttention && e.Sense.ASC == 0x29 && (e.Sense.ASCQ == 0x02 || e.Sense.ASCQ == 0x03):
		u.w.fail("host %s gets a unit attention for a reset (29/%02x) that was not requested on %s", u.name, e.Sense.ASCQ, u.lun.name)
	case e.Kind == initiator.EventPathDown || e.Kind == initiator.EventRoute:
		u.events.Add(1)
	}
	if e.Kind == initiator.EventRoute {
		u.w.rare("a host took another path")
	}
}

func (u *user) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := u.dev.Close(ctx); err != nil {
		u.w.fail("close of the device of %s: %v", u.name, err)
	}
}

// work uses the registers until hosts are to stop.
func (u *user) work(rng *rand.Rand, v *values, client int, think time.Duration) {
	buf := make([]byte, blockSize)
	for !u.w.isIdle() {
		u.w.pause(rng, 0, think)
		r := rng.IntN(registers)
		op := porcupine.Operation{ClientId: client, Output: uint64(0)}
		var do func(context.Context) error
		in := register.Input{Kind: register.Write}
		kind := "write"
		switch k := rng.IntN(20); {
		case k < 8:
			in.Kind, kind = register.Read, "read"
			do = func(ctx context.Context) error { _, err := u.dev.ReadAt(ctx, buf, offset(r)); return err }
		case k < 9:
			kind = "flush"
			do = u.dev.Flush
		case k < 10:
			kind = "zero"
			do = func(ctx context.Context) error { return u.dev.WriteZeroes(ctx, offset(r), blockSize, rng.IntN(2) == 0) }
		default:
			in.Value = v.next()
			register.Fill(buf, in.Value)
			do = func(ctx context.Context) error { _, err := u.dev.WriteAt(ctx, buf, offset(r)); return err }
		}
		p := u.w.begin(u.bound, "%s of %s by %s", kind, u.lun.name, u.name)
		events := u.events.Load()
		op.Call = int64(u.w.now())
		err := do(context.Background())
		op.Return = int64(u.w.now())
		u.w.ended(p, kind+" "+u.lun.name)
		if err != nil {
			u.w.fail("host %s sees an error: %s of %s: %v", u.name, kind, u.lun.name, err)
			if in.Kind == register.Read || kind == "flush" {
				continue
			}
			in.Optional = true
		}
		if kind == "flush" {
			continue
		}
		if in.Kind == register.Read {
			x, err := register.Parse(buf)
			if errors.Is(err, register.ErrTorn) {
				u.w.fail("host %s: %s register %d: %v", u.name, u.lun.name, r, err)
				continue
			}
			op.Output = x
		}
		op.Input = in
		u.h.add(r, op)
		if in.Kind != register.Read && (u.events.Load() != events || op.Return-op.Call > int64(50*time.Millisecond)) { // retries are at-least-once (R11)
			in.Optional = true
			op.Input = in
			u.h.add(r, op, op)
		}
	}
}
