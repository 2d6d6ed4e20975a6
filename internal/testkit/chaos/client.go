package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/register"
)

// ioDeadline is how long I/O may wait for a path. No fault lasts nearly as long, so an error means
// that service did not come back.
const ioDeadline = 90 * time.Second

// disk is a LUN as one host sees it.
type disk struct {
	*initiator.Device
	lun    int
	blocks []int64
	events atomic.Int64 // what happened to its paths, counted
}

func openDisk(ctx context.Context, lun int, m *targetv1.Mapping) (*disk, error) {
	d := &disk{lun: lun}
	cfg := initiator.Config{InitiatorName: m.HostIqn, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid, Deadline: ioDeadline,
		Sessions: 1 + 2*(lun%2), // to each portal, of every second LUN
		Events:   func(initiator.Event) { d.events.Add(1) }}
	for _, p := range m.Portals {
		cfg.Portals = append(cfg.Portals, p.Address)
	}
	var err error
	if d.Device, err = initiator.Open(ctx, cfg); err != nil {
		return nil, err
	}
	d.blocks = blocksOf(lunSize, d.BlockSize())
	return d, nil
}

// lunSize is the size of the LUNs under test before any is expanded.
const lunSize = 16 << 20

// hot is how many of the blocks are used most of the time; the others keep what they hold for a
// while, so that a write that one node has missed is not covered up by the next one.
const (
	hot       = 8
	cold      = 40
	coldShare = 0.25
)

// blocksOf are the blocks that are used. The hot ones first: neighbours within a page of the page
// cache and across one, at both sides of a MiB, and the last one. The cold ones are spread.
func blocksOf(size, blockSize int) []int64 {
	mib, last := int64(1<<20)/int64(blockSize), int64(size)/int64(blockSize)-1
	list := []int64{0, 1, 7, 8, mib - 1, mib, last / 2, last}
	for i := range int64(cold) {
		list = append(list, mib+5+i*(last-mib-10)/cold)
	}
	return list
}

// pick draws a block.
func pick(rng *rand.Rand, blocks []int64) int64 {
	if rng.Float64() < coldShare {
		return blocks[hot+rng.IntN(cold)]
	}
	return blocks[rng.IntN(hot)]
}

func (d *disk) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return d.Close(ctx)
}

// do runs one request.
func (d *disk) do(op initiator.Op, block int64, buf []byte, fua bool) error {
	done := make(chan struct{})
	io := &initiator.IO{Op: op, Off: block * int64(d.BlockSize()), Buf: buf, FUA: fua, Done: func(*initiator.IO) { close(done) }}
	if err := d.Submit(io); err != nil {
		return err
	}
	<-done // bounded by ioDeadline
	return io.Err
}

// read returns the value of a block.
func (d *disk) read(block int64) (uint64, error) {
	buf := make([]byte, d.BlockSize())
	if err := d.do(initiator.OpRead, block, buf, false); err != nil {
		return 0, err
	}
	return register.Parse(buf)
}

// client is one host: a device for each LUN and workers that use them.
type client struct {
	id    int
	disks []*disk
	r     *recorder
}

// think is the longest pause between two operations of a worker: histories have to stay short
// enough to be judged.
const think = 8 * time.Millisecond

// work runs operations until ctx ends; all choices follow from rng.
func work(ctx context.Context, r *recorder, rng *rand.Rand, one func(*rand.Rand)) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		r.gate.RLock()
		one(rng)
		r.gate.RUnlock()
		t.Reset(time.Duration(rng.Int64N(int64(think))))
	}
}

// retried is from when on the initiator may have sent a write twice. Sooner answers only count as
// such if something happened to the device's paths meanwhile.
const retried = 10 * time.Millisecond

// one operation of a worker.
func (c *client) one(rng *rand.Rand, p *progress) {
	d := c.disks[rng.IntN(len(c.disks))]
	block := pick(rng, d.blocks)
	k := key{d.lun, block}
	events := d.events.Load()
	x := rng.Float64()
	start := c.r.now()
	switch {
	case x < 0.05:
		err := d.do(initiator.OpFlush, 0, nil, false)
		c.r.ended(p, start, c.r.now(), "flush")
		if err != nil && !c.r.excused(err) {
			c.r.failed("flush of LUN %d: %w", d.lun, err)
		}
	case x < 0.45:
		v, err := d.read(block)
		end := c.r.now()
		c.r.ended(p, start, end, "read")
		c.r.record(k, c.id, v, err, start, end)
	default:
		v := c.r.value(k)
		err := d.do(initiator.OpWrite, block, register.Fill(make([]byte, d.BlockSize()), v), x > 0.92)
		end := c.r.now()
		c.r.ended(p, start, end, "write")
		w := porcupine.Operation{ClientId: c.id, Input: register.Input{Kind: register.Write, Value: v}, Call: start, Return: end}
		maybe := w
		maybe.Input = register.Input{Kind: register.Write, Value: v, Optional: true}
		switch {
		case err == nil && end-start < int64(retried) && d.events.Load() == events:
			c.r.add(k, w)
		case err == nil: // a host's own retry is at-least-once (R11)
			c.r.add(k, w, maybe, maybe)
		case c.r.excused(err), c.r.hurt(k, err, start):
			c.r.add(k, maybe)
		default:
			c.r.failed("write of %v: %w", k, err)
			maybe.Return = open
			c.r.add(k, maybe)
		}
	}
}

// record puts a read into the history.
func (r *recorder) record(k key, id int, v uint64, err error, start, end int64) {
	switch {
	case errors.Is(err, register.ErrTorn), err == nil && !k.owns(v):
		r.wrongRead(k, v, err)
	case err != nil && r.hurt(k, err, start):
	case err != nil:
		r.failed("read of %v: %w", k, err)
	default:
		r.add(k, porcupine.Operation{ClientId: id, Input: register.Input{Kind: register.Read}, Output: v, Call: start, Return: end})
	}
}

// excused says that an error is what was asked for: no space, while there is none.
func (r *recorder) excused(err error) bool {
	if errors.Is(err, initiator.ErrNoSpace) && r.noSpace.Load() {
		r.refused.Add(1)
		return true
	}
	return false
}
