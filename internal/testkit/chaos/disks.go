package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/register"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// The nodes' disks can be made slow, be stopped, and be given less bandwidth than hosts write.

const (
	// diskRate is what both disks take in an overload, in bytes per second, and floodDepth writes
	// of floodSize bytes are on their way.
	diskRate   = 12 << 20
	floodSize  = 256 << 10
	floodDepth = 64
	floodLUN   = 96 << 20
	// credits is how long the disks are fast at the beginning of every other overload, as disks are
	// until their burst credits are used up: what nodes have learned of them is wrong then.
	credits = 1500 * time.Millisecond
)

// setDisk changes what a node's disk does; node 2 means both.
func (r *rig) setDisk(node int, k slowdisk.Knobs) error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	var err error
	for i := range harness.Names {
		if (node == i || node == len(harness.Names)) && r.slow[i] != nil {
			err = errors.Join(err, r.slow[i].Set(ctx, k))
		}
	}
	return err
}

// slowness of a disk, drawn from n: requests take long, side by side or one after the other.
func slowness(n int) slowdisk.Knobs {
	d := time.Duration(5+n%96) * time.Millisecond
	k := slowdisk.Knobs{ReadLatency: d, WriteLatency: d, FlushLatency: 2 * d}
	if n%3 == 0 {
		k.MaxParallel = 1 + n%4
	}
	return k
}

// overload gives both disks less bandwidth than the flood needs, at once or when their credits are
// used up. No overload is as short as those last.
func (r *rig) overload(f Fault, wg *sync.WaitGroup) error {
	slow := func() error { return r.setDisk(f.Node, slowdisk.Knobs{WriteBandwidth: diskRate}) }
	if f.N%2 == 0 {
		return slow()
	}
	wg.Go(func() {
		time.Sleep(credits)
		if err := slow(); err != nil {
			r.rec.failed("overload: %w", err)
		}
	})
	return nil
}

// flood writes as fast as it is allowed to, until the time is over.
func (r *rig) flood(d time.Duration) {
	end := time.Now().Add(d)
	buf := register.Fill(make([]byte, floodSize), 1<<62)
	var wg sync.WaitGroup
	for w := range int64(floodDepth) {
		wg.Go(func() {
			for n := w; time.Now().Before(end); n += floodDepth {
				block := n * floodSize % floodLUN / int64(r.bulk.BlockSize())
				if err := r.bulk.do(initiator.OpWrite, block, buf, false); err != nil && !r.rec.excused(err) {
					r.rec.failed("write of the flood: %w", err)
					return
				}
				r.rec.flood.Add(floodSize)
			}
		})
	}
	wg.Wait()
}

// epoch of the record as a node knows it that answers; it moves when a node is excluded or
// readmitted.
func (r *rig) epoch(ctx context.Context) (uint64, error) {
	var errs []error
	for i, n := range harness.Names {
		s, err := r.pair.Status(ctx, i)
		if err == nil {
			return s.Epoch, nil
		}
		errs = append(errs, fmt.Errorf("node %s: %w", n, err))
	}
	return 0, errors.Join(errs...)
}
