package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/bench/rig"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

const (
	// slowRead is what a read of the large member takes; that of the fast one takes what the disk
	// takes by itself, about 0.1 ms.
	slowRead = 8 * time.Millisecond
	// lunSize is three times what the fast member holds.
	lunSize  = 2304 << 20
	fastSize = 832 << 20
	slowSize = lunSize + 768<<20
	extent   = 4 << 20
	block    = 8 << 10
)

// bench is one load, with a pair of its own.
type bench struct {
	rig  *rig.Rig
	name string
	w    io.Writer

	pair  *rig.Pair
	lun   *rig.LUN
	dev   *initiator.Device
	ends  []func() error
	begun time.Time

	moves    [2]counter // of the nodes
	restarts *int       // of nodes in all loads
}

func (b *bench) close() (err error) {
	for _, f := range slices.Backward(b.ends) {
		err = errors.Join(err, f())
	}
	return err
}

// start makes the pair and a LUN that is written from end to end.
func (b *bench) start(ctx context.Context) error {
	b.begun = time.Now()
	disks, err := b.rig.Filesystem(ctx, "disks-"+b.name, rig.TmpFS, 2*(slowSize+fastSize)+64<<20) // a disk's own file must not be read from another disk
	if err != nil {
		return err
	}
	b.ends = append(b.ends, func() error { return unix.Unmount(disks, 0) }) // the memory is for the next load
	volumes := map[string][2]string{}
	var slow []*slowdisk.Disk
	for _, m := range []string{"slow", "fast"} {
		var mounts [2]string
		for i, n := range harness.Names {
			size := int64(fastSize)
			if m == "slow" {
				size = slowSize
			}
			d, err := slowdisk.Start(ctx, slowdisk.Options{Dir: filepath.Join(disks, n+"-"+m), Size: size})
			if err != nil {
				return err
			}
			b.ends = append(b.ends, d.Close)
			if mounts[i] = d.Mount; m == "slow" {
				slow = append(slow, d)
			}
		}
		volumes["pool/"+m] = mounts
	}
	if b.pair, err = b.rig.StartPair(ctx, rig.PairOptions{Name: b.name, Size: 512 << 20, Volumes: volumes, Args: []string{"--balancing", "off", "--tier", "pool/fast=fast"}}); err != nil {
		return err
	}
	b.ends = append(b.ends, b.pair.Close)
	if b.lun, err = b.pair.CreateLUNAt(ctx, b.name, lunSize, "a", "pool"); err != nil {
		return err
	}
	if b.dev, err = b.lun.Open(ctx, b.name, rig.Both); err != nil {
		return err
	}
	b.ends = append(b.ends, func() error { rig.CloseDevice(b.dev); return nil })
	if err := load.Fill(ctx, b.dev); err != nil {
		return err
	}
	for _, d := range slow {
		if err := d.Set(ctx, slowdisk.Knobs{ReadLatency: slowRead}); err != nil {
			return err
		}
	}
	return nil
}

// say tells a person how far it is.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.w, "%-8s %6s  %s\n", b.name, time.Since(b.begun).Round(time.Second), fmt.Sprintf(format, args...))
}

// tiering asks a node, and waits for one that is being started again.
func (b *bench) tiering(ctx context.Context, node int) (*targetv1.TieredVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r, err := b.pair.Client(node).GetTiering(ctx, &targetv1.GetTieringRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	if len(r.Volumes) != 1 {
		return nil, fmt.Errorf("node %s has %d volumes with tiers", harness.Names[node], len(r.Volumes))
	}
	return r.Volumes[0], nil
}

// moved is how many extents have moved in all at the node where more of them have: the other one
// follows it. Node a owns the LUN in the beginning, and node b after a stall of the machine that is
// longer than the lease.
func (b *bench) moved(ctx context.Context) (int64, error) {
	for i := range b.moves {
		v, err := b.tiering(ctx, i)
		if err != nil {
			return 0, err
		}
		if b.moves[i].add(int64(v.Moves)) {
			*b.restarts++
			b.say("node %s's process was started again", harness.Names[i])
		}
	}
	return max(b.moves[0].total, b.moves[1].total), nil
}

// counter adds up what the processes of a node count, each from zero.
type counter struct{ last, total int64 }

// add takes a reading, and reports whether it is of another process than the one before.
func (c *counter) add(now int64) (again bool) {
	if again = now < c.last; again {
		c.last = 0
	}
	c.total, c.last = c.total+now-c.last, now
	return again
}

// partner is how many extents lie on the fast member of node b.
func (b *bench) partner(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r, err := b.pair.Client(1).GetTiering(ctx, &targetv1.GetTieringRequest{})
	if err != nil {
		return 0, err
	}
	return r.Volumes[0].GetFast().GetExtents(), nil
}
