package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/register"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// begin makes a fault happen. What takes long continues in wg, which the episode waits for. alone
// says that it is all that happens to a pair in sync.
func (r *rig) begin(ctx context.Context, f Fault, alone bool, wg *sync.WaitGroup) error {
	peer := 1 - f.Node
	switch f.Kind {
	case Kill:
		r.kill(wg, f.Node)
	case Crash:
		r.signal(f.Node, syscall.SIGKILL)
	case KillBoth:
		r.kill(wg, f.Node, peer)
	case Terminate:
		wg.Go(func() {
			if err := r.pair.Term(f.Node); err != nil {
				fmt.Fprintf(r.w, "  terminate %s: %v\n", harness.Names[f.Node], err)
			}
		})
	case Stop:
		r.signal(f.Node, syscall.SIGSTOP)
	case PartitionLink:
		return errors.Join(r.net.filter(nodeA, ifLink, ruleDrop), r.net.filter(nodeB, ifLink, ruleDrop))
	case PartitionOneWay:
		return r.net.filter(peer, ifLink, ruleDrop)
	case PartitionClients:
		return r.hostWire(f.Node, ruleDrop)
	case PartitionNode:
		return errors.Join(r.net.filter(nodeA, ifLink, ruleDrop), r.net.filter(nodeB, ifLink, ruleDrop), r.hostWire(f.Node, ruleDrop))
	case LossLink:
		return errors.Join(r.net.filter(nodeA, ifLink, ruleLoss(f.N)), r.net.filter(nodeB, ifLink, ruleLoss(f.N)))
	case LossClients:
		return r.hostWire(f.Node, ruleLoss(f.N))
	case ResetLink:
		return errors.Join(r.net.filter(nodeA, ifLink, ruleReset), r.net.filter(nodeB, ifLink, ruleReset))
	case SlowLink:
		return r.net.throttle(f.N)
	case FullDisk:
		r.rec.noSpace.Store(true)
		// Both its ends wait for the disk, which may be stuck by another fault of the episode until
		// the goroutine that is here ends that one.
		wg.Go(func() { r.fullDisk(f) })
	case TinyDisk:
		r.rec.noSpace.Store(true)
		wg.Go(func() { r.fillTiny(f.For) })
	case ArbiterDown:
		return r.eachArbiter(f.Node, false)
	case ArbiterSlow:
		return r.holdArbiter(true)
	case SlowDisk:
		return r.setDisk(f.Node, slowness(f.N))
	case StuckDisk, StuckDisks:
		return r.setDisk(f.Node, slowdisk.Knobs{Stuck: true})
	case Overload:
		wg.Go(func() { r.flood(f.For) })
		return r.overload(f, wg)
	case SqueezedDisk:
		r.rec.noSpace.Store(true)
		wg.Go(func() { r.squeeze(f) })
	case ReadErrors, WriteErrors, FlushErrors:
		wg.Go(func() { r.breakDisk(ctx, f) })
	case FullPool:
		r.rec.noSpace.Store(true)
		wg.Go(func() { r.breakDisk(ctx, f) })
	case ReplacedDisk, DamagedFiles:
		// What another fault has stuck on the disk gets its answer: nothing can be taken out below
		// a process that waits for it.
		return errors.Join(r.setDisk(f.Node, slowdisk.Knobs{}), r.pair.Kill(f.Node))
	case DamageRunning:
		wg.Go(func() { r.damageRunning(f) })
	case DamageStopped:
		return r.damageBeforeStop(ctx, f)
	case DamageAlone:
		return r.damageAlone(ctx, f)
	case MemoryPressure, HalfWrites:
		wg.Go(func() { r.crowd(ctx, f, alone) })
	case Fences:
		wg.Go(func() { r.fence(f.For, uint64(f.N)) })
	case IdleSockets:
		wg.Go(func() { r.idle(f.For) })
	case Transfer, Drain, Snapshot, Expand, Recreate:
		wg.Go(func() { r.operate(ctx, f) })
	}
	return nil
}

// end lets a fault end.
func (r *rig) end(f Fault) error {
	switch f.Kind {
	case Kill:
		return r.restart(f.Node)
	case KillBoth:
		return errors.Join(r.restart(f.Node), r.restart(1-f.Node))
	case Stop:
		r.signal(f.Node, syscall.SIGCONT)
	case PartitionLink, PartitionOneWay, LossLink, ResetLink:
		return errors.Join(r.net.filter(nodeA, ifLink, ""), r.net.filter(nodeB, ifLink, ""))
	case PartitionClients, LossClients:
		return r.hostWire(f.Node, "")
	case PartitionNode:
		return errors.Join(r.net.filter(nodeA, ifLink, ""), r.net.filter(nodeB, ifLink, ""), r.hostWire(f.Node, ""))
	case SlowLink:
		return r.net.throttle(0)
	case ReplacedDisk:
		return r.replace(context.Background(), f.Node)
	case DamagedFiles:
		return r.damageFiles(f)
	case DamageStopped:
		return r.damageStopped(f)
	case DamageAlone:
		return r.endAlone(f)
	case ArbiterDown:
		return r.eachArbiter(f.Node, true)
	case ArbiterSlow:
		return r.holdArbiter(false)
	case SlowDisk, StuckDisk, StuckDisks, Overload:
		return r.setDisk(f.Node, slowdisk.Knobs{})
	}
	return nil
}

// heal ends everything that an episode may have left, and starts what does not run.
func (r *rig) heal() error {
	err := errors.Join(r.net.heal(), r.setDisk(len(harness.Names), slowdisk.Knobs{}), r.eachArbiter(2, true), r.holdArbiter(false))
	for i := range harness.Names {
		r.signal(i, syscall.SIGCONT)
		err = errors.Join(err, r.emptyDisk(i), r.restart(i))
	}
	return err
}

// kill ends nodes at once. Their end waits for the disk, which may be stuck by another fault of the
// episode until the goroutine that is here ends that one.
func (r *rig) kill(wg *sync.WaitGroup, nodes ...int) {
	for _, i := range nodes {
		_ = r.pair.Signal(i, syscall.SIGKILL) // another fault may have killed it
	}
	for _, i := range nodes {
		wg.Go(func() {
			if err := r.pair.Kill(i); err != nil {
				fmt.Fprintf(r.w, "  kill %s: %v\n", harness.Names[i], err)
			}
		})
	}
}

// signal is for a process that may have been killed by another fault.
func (r *rig) signal(i int, s syscall.Signal) {
	_ = r.pair.SignalProcess(i, s)
}

// restart starts a node that a fault has ended, unless it could not reach the arbiter, or waits for
// its disk before it ends: then it would refuse to start, and a supervisor would come back later,
// as heal does. The harness starts one again that has ended because it left.
func (r *rig) restart(i int) error {
	if r.pair.PID(i) != 0 || r.pair.Waits(i) || r.pair.Ending(i) {
		return nil
	}
	if _, err := os.Stat(r.arbiterPath(i) + "/"); err != nil {
		return nil
	}
	return r.pair.StartNode(i)
}

// hostWire filters what passes between a node and its clients, both ways.
func (r *rig) hostWire(node int, rule string) error {
	return errors.Join(r.net.filter(node, ifHost, rule), r.net.filter(clients, wire(node), rule))
}

func (r *rig) eachArbiter(node int, reachable bool) error {
	var err error
	for i := range harness.Names {
		if node == i || node == len(harness.Names) {
			err = errors.Join(err, r.arbiter(i, reachable))
		}
	}
	return err
}

func (r *rig) filler(i int) string { return filepath.Join(r.disks[i], "filler") }

// fullDisk fills a node's disk, and empties it when the fault is over.
func (r *rig) fullDisk(f Fault) {
	over := time.After(f.For)
	if err := r.fillDisk(f.Node); err != nil {
		r.rec.failed("filling the disk of node %s: %w", harness.Names[f.Node], err)
	}
	<-over
	if err := r.emptyDisk(f.Node); err != nil {
		r.rec.failed("emptying the disk of node %s: %w", harness.Names[f.Node], err)
	}
}

// fillDisk takes all the space that a node's filesystem has left, down to the last blocks.
func (r *rig) fillDisk(i int) error {
	f, err := os.OpenFile(r.filler(i), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	off := st.Size()
	for n := int64(64 << 20); n >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, off, n); {
		case errors.Is(err, unix.ENOSPC):
			n /= 2
		case err != nil && !errors.Is(err, unix.EINTR):
			return errors.Join(err, f.Close())
		case err == nil:
			off += n
		}
	}
	return f.Close()
}

// squeeze has other data take all of a node's space and give some of it back again and again, while
// a host writes to where nothing is yet: its writes run out of space in the middle, on one node.
func (r *rig) squeeze(f Fault) {
	rng := rand.New(rand.NewPCG(uint64(f.N), 0))
	end := time.Now().Add(f.For)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := register.Fill(make([]byte, 1<<20), 1<<61)
		for off := int64(0); off < diskSize && time.Now().Before(end); off += int64(len(buf)) {
			err := r.tiny.do(initiator.OpWrite, off/int64(r.tiny.BlockSize()), buf, false)
			if err != nil && !r.rec.excused(err) {
				r.rec.failed("write of the LUN on a squeezed disk: %w", err)
				return
			}
		}
	})
	for time.Now().Before(end) {
		err := r.fillDisk(f.Node)
		if err == nil {
			_ = wait(context.Background(), time.Duration(rng.Int64N(int64(60*time.Millisecond))))
			err = r.yieldDisk(f.Node, rng.Int64N(3<<20))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) { // another fault may have emptied it
			r.rec.failed("squeezed disk: %w", err)
			break
		}
		_ = wait(context.Background(), time.Duration(rng.Int64N(int64(60*time.Millisecond))))
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), ioDeadline)
	defer cancel()
	err := errors.Join(r.emptyDisk(f.Node), r.tiny.Discard(ctx, 0, diskSize))
	if err != nil {
		r.rec.failed("after a disk was squeezed: %w", err)
	}
}

// yieldDisk has other data give back so many bytes.
func (r *rig) yieldDisk(i int, n int64) error {
	st, err := os.Stat(r.filler(i))
	if err != nil {
		return err
	}
	return os.Truncate(r.filler(i), max(st.Size()-n, 0))
}

func (r *rig) emptyDisk(i int) error {
	if err := os.Remove(r.filler(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// fillTiny writes to the LUN that promises more than there is until that is refused, keeps the
// space for a while and gives it back.
func (r *rig) fillTiny(hold time.Duration) {
	buf := register.Fill(make([]byte, 1<<20), 1<<63)
	begun := time.Now()
	for off := int64(0); off < diskSize && time.Since(begun) < 20*time.Second; off += int64(len(buf)) {
		err := r.tiny.do(initiator.OpWrite, off/int64(r.tiny.BlockSize()), buf, false)
		if errors.Is(err, initiator.ErrNoSpace) {
			r.rec.refused.Add(1)
			break
		}
		if err != nil {
			r.rec.failed("write of the LUN that is too big: %w", err)
			break
		}
	}
	<-time.After(hold) // the length of the fault
	ctx, cancel := context.WithTimeout(context.Background(), ioDeadline)
	defer cancel()
	if err := r.tiny.Discard(ctx, 0, diskSize); err != nil {
		r.rec.failed("discard of the LUN that is too big: %w", err)
	}
}

// operate does what an operator does. It may be refused while faults are at work; what is done must
// be right.
func (r *rig) operate(ctx context.Context, f Fault) {
	lun := f.N % len(r.luns)
	var err error
	switch f.Kind {
	case Transfer:
		req := &targetv1.TransferOwnershipRequest{ToNode: harness.Names[f.Node], LunUuids: []string{r.luns[lun]}}
		if f.N%4 == 0 {
			req.LunUuids, req.All = nil, true
		}
		err = r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
			_, err := c.TransferOwnership(ctx, req)
			return err
		})
	case Drain:
		req := &targetv1.DrainRequest{Node: harness.Names[f.Node], Seconds: uint32(f.For/time.Second) + 1, Reason: "chaos"}
		err = r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
			_, err := c.Drain(ctx, req)
			return err
		})
	case Expand:
		err = r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
			l, err := c.ExpandLUN(ctx, &targetv1.ExpandLUNRequest{Uuid: r.luns[lun], SizeBytes: uint64(r.sizeOf(lun, 0) + 1<<20)})
			if err == nil {
				r.sizeOf(lun, int64(l.SizeBytes))
			}
			return err
		})
	case Snapshot:
		err = r.snapshot(ctx, lun)
	case Recreate:
		err = r.recreate(ctx)
	}
	if err != nil {
		fmt.Fprintf(r.w, "  %s: %v\n", f.Kind, err)
	}
}

// sizeOf is a LUN's size, at least as large as it has been said to be.
func (r *rig) sizeOf(lun int, said int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.size[lun] = max(r.size[lun], said)
	return r.size[lun]
}

// kept are the snapshots that there are; keep adds one, drop takes one away.
func (r *rig) kept() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.snaps)
}

func (r *rig) keep(id string) []string {
	r.mu.Lock()
	r.snaps = append(r.snaps, id)
	r.mu.Unlock()
	return r.kept()
}

func (r *rig) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snaps = slices.DeleteFunc(r.snaps, func(s string) bool { return s == id })
}

// snapshot makes one, and a clone of it, and reads the clone: each block must be what it was at
// some moment while the snapshot was made. The clone goes; the snapshot stays, to be compared at
// the end, until there are more of them than are kept.
func (r *rig) snapshot(ctx context.Context, lun int) error {
	snap, clone := uuid.NewString(), uuid.NewString()
	start := r.rec.now()
	err := r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
		_, err := c.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap-" + snap, SourceLunUuid: r.luns[lun]})
		return err
	})
	end := r.rec.now()
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if kept := r.keep(snap); len(kept) > keepSnapshots {
		err := r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
			_, err := c.DeleteSnapshot(ctx, &targetv1.DeleteSnapshotRequest{Uuid: kept[0]})
			return err
		})
		if err != nil {
			return fmt.Errorf("delete an old one: %w", err)
		}
		r.drop(kept[0])
	}
	req := &targetv1.CreateLUNRequest{Uuid: clone, Name: "clone-" + clone, SizeBytes: uint64(r.sizeOf(lun, 0)), SourceSnapshotUuid: snap}
	if err := r.createLUN(ctx, req); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	m, err := r.mapHost(ctx, clone, "reader")
	if err != nil {
		return fmt.Errorf("map the clone: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	d, err := openDisk(limited, lun, m)
	if err != nil {
		return fmt.Errorf("open the clone: %w", err)
	}
	var seen []porcupine.Operation
	for _, b := range d.blocks {
		v, err := d.read(b)
		if k := (key{lun, b}); errors.Is(err, register.ErrTorn) || err == nil && !k.owns(v) {
			r.rec.wrongRead(k, v, err)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("read the clone: %w", err), d.close())
		}
		seen = append(seen, porcupine.Operation{ClientId: readerID, Input: register.Input{Kind: register.Read}, Output: v, Call: start, Return: end})
	}
	for i, b := range d.blocks {
		r.rec.add(key{lun, b}, seen[i])
	}
	err = d.close()
	return errors.Join(err, r.api(ctx, func(ctx context.Context, c targetv1.TargetServiceClient) error {
		_, err := c.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: clone})
		if err == nil {
			_, err = c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: clone})
		}
		return err
	}))
}
