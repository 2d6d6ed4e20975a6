package scale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// opsAround is how many operations must end before an event, and again after it.
const opsAround = 1000

// load writes to some LUNs, one operation at a time on each, until it is closed.
type load struct {
	disks  []*initiator.Device
	stop   context.CancelFunc
	wg     sync.WaitGroup
	done   atomic.Int64
	begun  time.Time
	slow   atomic.Int64 // ns: the longest operation that ended since then
	failed atomic.Pointer[error]
}

func newLoad(ctx context.Context, maps []*targetv1.Mapping) (*load, error) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &load{stop: stop, begun: time.Now()}
	for _, m := range maps {
		cfg := initiator.Config{InitiatorName: m.HostIqn, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
		for _, p := range m.Portals {
			cfg.Portals = append(cfg.Portals, p.Address)
		}
		d, err := initiator.Open(ctx, cfg)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.disks = append(l.disks, d)
	}
	for i, d := range l.disks {
		l.wg.Go(func() { l.write(run, d, uint64(i)) })
	}
	return l, nil
}

// rest after each operation keeps the load from being what is measured.
const rest = time.Millisecond

func (l *load) write(ctx context.Context, d *initiator.Device, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	buf := make([]byte, 4096)
	t := time.NewTicker(rest)
	defer t.Stop()
	for ctx.Err() == nil {
		start := time.Since(l.begun)
		_, err := d.WriteAt(ctx, buf, rng.Int64N(d.Size()/4096)*4096)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.failed.CompareAndSwap(nil, &err)
			return
		}
		took := int64(time.Since(l.begun) - start)
		for old := l.slow.Load(); took > old && !l.slow.CompareAndSwap(old, took); old = l.slow.Load() {
		}
		l.done.Add(1)
		<-t.C
	}
}

// mark begins an event: an operation that ends from now on counts for worst.
func (l *load) mark() { l.slow.Store(0) }

func (l *load) worst() time.Duration { return time.Duration(l.slow.Load()) }

// more waits until so many more operations have ended.
func (l *load) more(ctx context.Context, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	to := l.done.Load() + n
	err := harness.Wait(ctx, "writes go on", func() (bool, string) {
		return l.done.Load() >= to || l.failed.Load() != nil, fmt.Sprint(l.done.Load())
	})
	if p := l.failed.Load(); p != nil {
		return *p
	}
	return err
}

func (l *load) close() error {
	l.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	l.wg.Wait()
	var errs []error
	for _, d := range l.disks {
		errs = append(errs, d.Close(ctx))
	}
	return errors.Join(errs...)
}
