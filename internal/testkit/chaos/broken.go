package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/register"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// Disks that give errors, and disks that are replaced. A node whose disk gives an error has to
// leave (R12), its process has to end and to be started again, as often as the disk continues to
// fail, and to come back when the disk works: hosts see none of it. A filesystem that has shut
// itself down meanwhile is mounted again, or its disk is replaced, as docs/operations.md has it.

const (
	leaveLimit = 40 * time.Second // for a node whose disk gives errors to leave
	// refreshErrors is how often the parts of a disk that give errors are looked up again: files
	// get other places while they are written.
	refreshErrors = 100 * time.Millisecond
	// livesOfADisk is how many lives of a node may end on one disk. The member waits twice as long
	// before each copy to a disk that fails again and again and says that it is to be replaced; a
	// run does not wait for minutes.
	livesOfADisk = 5
)

// failing are the kinds of disks that give errors; spoiling also those that end a node's copy
// without.
var (
	failing  = []Kind{ReadErrors, WriteErrors, FlushErrors, FullPool}
	spoiling = append(slices.Clone(failing), ReplacedDisk, DamagedFiles, DamageRunning, DamageStopped, DamageAlone)
	// beside are the kinds that may come with these. While one copy is no good the other one has to
	// stay what it is: nothing may stop the node that has it, or keep it from being a member.
	// notAlone are those of them that might end the process of a node that is alone with its
	// damage: what it does not trust after that it takes as it is.
	notAlone = []Kind{Snapshot, HalfWrites, ArbiterDown, ArbiterSlow}
	beside   = []Kind{Fences, IdleSockets, HalfWrites, Recreate, Transfer, Drain, Snapshot, Expand, ArbiterDown, ArbiterSlow, LossClients}
)

// goTogether tells whether two kinds may be in one episode.
func goTogether(a, b Kind) bool {
	if slices.Contains(spoiling, b) {
		a, b = b, a
	}
	if a == DamageAlone && slices.Contains(notAlone, b) {
		return false
	}
	return a != b && (!slices.Contains(spoiling, a) || slices.Contains(beside, b))
}

// Extent of the errors, drawn.
const (
	errorsInLUNs  = iota // the data of LUNs
	errorsInFiles        // all files of the node
	errorsAll            // the whole disk: XFS shuts down if it has to write its log
	errorExtents
)

// errorKnobs is what a disk does to requests in an episode. The parts come beside.
func errorKnobs(k Kind) slowdisk.Knobs {
	switch k {
	case ReadErrors:
		return slowdisk.Knobs{ReadErrors: true}
	case FlushErrors:
		return slowdisk.Knobs{FlushErrors: true}
	case FullPool:
		return slowdisk.Knobs{WriteErrors: true, FlushErrors: true, NoSpace: true}
	}
	return slowdisk.Knobs{WriteErrors: true}
}

// breakDisk has a node's disk give errors until the node has left, and for the fault's length at
// least.
func (r *rig) breakDisk(ctx context.Context, f Fault) {
	lives := len(r.pair.Exits(f.Node))
	begun, asked := time.Now(), time.Time{}
	knobs, left := errorKnobs(f.Kind), false
	var failed error
	for !left || time.Since(begun) < f.For {
		parts, err := r.parts(f.Node, f.N%errorExtents) // writes out what has been written, as far as the disk takes it
		if !left {
			r.writeSeldom() // and now something is not written out
		}
		if len(parts) > 0 || f.N%errorExtents == errorsAll {
			knobs.ErrorsAt = parts
			err = r.setDisk(f.Node, knobs)
		}
		if f.Kind == ReadErrors {
			if !left && time.Since(asked) > opTimeout/2 { // only an owner reads, and a transfer may be refused
				r.operate(ctx, Fault{Kind: Transfer, Node: f.Node})
				asked = time.Now()
			}
			r.dropCaches(f.Node)
		}
		if err != nil {
			failed = err
		}
		left = left || len(r.pair.Exits(f.Node)) > lives
		if time.Since(begun) > leaveLimit {
			r.rec.failed("node %s has not left after %v although its disk gives errors: %s (the last error of the disk's own: %v)",
				harness.Names[f.Node], leaveLimit, f, failed)
			break
		}
		_ = wait(context.WithoutCancel(ctx), refreshErrors)
	}
	if err := r.repairDisk(ctx, f); err != nil {
		r.rec.failed("%s: %w", f, err)
	}
}

// The LUN that is seldom written has all its blocks, so that they can be bad, and each is written
// once, while a disk gives errors: what that disk then lacks is not covered up by the next write,
// and shows when the copies are compared.
const (
	seldomLUN   = 16 << 20
	seldomValue = 1 << 60
	seldomWrite = 16 << 10
	// seldomStride leaves so much between two writes that a copy of what the second has changed
	// brings nothing of the first. It is no divisor of the size.
	seldomStride = 2<<20 + seldomWrite
)

func (r *rig) fillSeldom() error {
	buf := register.Fill(make([]byte, 1<<20), seldomValue)
	for off := int64(0); off < seldomLUN; off += int64(len(buf)) {
		if err := r.seldom.do(initiator.OpWrite, off/int64(r.seldom.BlockSize()), buf, false); err != nil {
			return fmt.Errorf("the LUN that is seldom written: %w", err)
		}
	}
	return r.seldom.do(initiator.OpFlush, 0, nil, false)
}

func (r *rig) writeSeldom() {
	r.wrote++
	off := r.wrote * seldomStride % seldomLUN
	v := seldomValue + uint64(r.wrote)
	err := r.seldom.do(initiator.OpWrite, off/int64(r.seldom.BlockSize()), register.Fill(make([]byte, seldomWrite), v), false)
	if r.rot.wroteSeldom(off, v, err == nil); err != nil && !r.rec.excused(err) {
		r.rec.failed("write of the LUN that is seldom written: %w", err)
	}
}

// repairDisk makes a disk work again, and does what an administrator has to.
func (r *rig) repairDisk(ctx context.Context, f Fault) error {
	if err := r.setDisk(f.Node, slowdisk.Knobs{}); err != nil {
		return err
	}
	lives := len(r.pair.Exits(f.Node)) - r.replacedAt[f.Node]
	down := r.shutDown(f.Node)
	switch {
	case lives >= livesOfADisk:
		fmt.Fprintf(r.w, "  node %s has ended %d times on this disk: it is replaced\n", harness.Names[f.Node], lives)
	case !down:
		return nil
	default:
		fmt.Fprintf(r.w, "  the filesystem of node %s has shut itself down\n", harness.Names[f.Node])
	}
	if down {
		r.rec.shutDowns.Add(1)
	}
	if err := r.pair.Kill(f.Node); err != nil {
		return err
	}
	if lives < livesOfADisk && f.N%2 == 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
		defer cancel()
		if err := r.slow[f.Node].Remount(ctx); err != nil {
			return err
		}
		return r.restart(f.Node)
	}
	return r.replace(ctx, f.Node)
}

// replace gives a node that does not run an empty disk, and starts it.
func (r *rig) replace(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if err := r.slow[i].Replace(ctx); err != nil {
		return err
	}
	r.replacedAt[i] = len(r.pair.Exits(i))
	r.rec.replaced.Add(1)
	return r.restart(i)
}

// readCopy has hosts read what a node that was given everything again has: it becomes the owner of
// all LUNs.
func (r *rig) readCopy(ctx context.Context, e Episode) {
	for _, f := range e.Faults {
		if !slices.Contains(spoiling, f.Kind) {
			continue
		}
		to := f.Node
		if slices.Contains(damage, f.Kind) && f.N%2 == 1 && !r.rot.unchecked { // what is damaged is the partner's: only a scrub reads it
			to = 1 - to
		}
		r.operate(ctx, Fault{Kind: Transfer, Node: to})
	}
}

// shutDown tells whether a filesystem takes nothing any more although its disk does.
func (r *rig) shutDown(i int) bool {
	name := filepath.Join(r.disks[i], "alive")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), os.Remove(name))
	}
	return err != nil && !errors.Is(err, unix.ENOSPC)
}

// parts are where a node's files are on its disk.
func (r *rig) parts(i, extent int) (parts []slowdisk.Range, err error) {
	if extent == errorsAll {
		return nil, nil
	}
	for _, name := range files(r.pair.State[i], extent) {
		f, e := os.Open(name)
		if e != nil {
			continue // it has gone
		}
		layout, e := load.LayoutOf(f)
		err = errors.Join(err, e, f.Close()) // writing out fails, as it is to, and some is not written out yet
		for _, x := range layout {
			parts = append(parts, slowdisk.Range{Off: x.Physical, Len: x.Length})
		}
	}
	return parts, err
}

// files of a state folder.
func files(state string, extent int) (names []string) {
	_ = filepath.WalkDir(state, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && (extent == errorsInFiles || strings.HasSuffix(name, ".img")) {
			names = append(names, name)
		}
		return nil // some may go meanwhile
	})
	return names
}

// dropCaches has what a node reads of its LUNs come from the disk, as far as it is there.
func (r *rig) dropCaches(i int) {
	for _, name := range files(r.pair.State[i], errorsInLUNs) {
		if f, err := os.Open(name); err == nil {
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			_ = f.Close()
		}
	}
}
