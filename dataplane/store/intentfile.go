package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// OpenIntents opens the write-intent bitmap of a LUN that has size bytes, at most MaxIntentSize;
// ErrNotFound when this node has no such LUN. The file is as long as it will be for that size, all
// of it allocated, before OpenIntents returns; ErrNoSpace changes nothing.
//
// What is not known to be clean is dirty: every region when there is no file yet (a new LUN, or one
// whose file was lost: the first checkpoint clears them), and every region of a block that does not
// decode, or is not there; Unreadable counts them. Such blocks are rewritten here, so that they are
// what they are read as.
func (v *BackingVolume) OpenIntents(id string, size int64) (*Intents, error) {
	full, rel, err := v.path(kindIntents, id)
	if err != nil {
		return nil, err
	}
	if size <= 0 || size > MaxIntentSize {
		return nil, fmt.Errorf("intents of LUN %s: size %d: %w", id, size, ErrRange)
	}
	v.objects.Lock()
	defer v.objects.Unlock()
	if ok, err := v.exists(kindLUN, id); !ok {
		return nil, errors.Join(err, fmt.Errorf("intents of LUN %s: %w", id, ErrNotFound))
	}
	x := &Intents{s: v.s, path: rel, owner: v.intentOwner(id),
		writes: map[int]*intentWrite{}}
	x.f, err = os.OpenFile(full, os.O_RDWR|syscall.O_DSYNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		v.s.log.Info("no write-intent file for this LUN; counting every region as dirty", "lun", id)
		if err := v.createIntents(&x.owner, full, rel, size, false); err != nil {
			return nil, err
		}
		x.unreadable = blocksFor(regionsOf(size))
		x.f, err = os.OpenFile(full, os.O_RDWR|syscall.O_DSYNC, 0)
	}
	if err != nil {
		return nil, classify("open", rel, err)
	}
	if err := x.load(size); err != nil {
		return nil, errors.Join(err, x.f.Close())
	}
	return x, nil
}

// intentOwner is whose the bits of a LUN are; id is one that path has accepted.
func (v *BackingVolume) intentOwner(id string) intentOwner {
	return intentOwner{lun: uuid.MustParse(id), store: uuid.MustParse(v.s.id)}
}

// createIntents makes a file in which every region is dirty, or clean: content before name, name
// before use.
func (v *BackingVolume) createIntents(o *intentOwner, full, rel string, size int64, clean bool) error {
	if err := v.s.Failed(); err != nil {
		return err
	}
	length := int64(blocksFor(regionsOf(size))) * intentBlock
	if err := v.s.fault(FaultCreate, rel, 0, length); err != nil {
		return classify("create", rel, err)
	}
	tmp := full + tmpSuffix
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return classify("create", rel, err)
	}
	if err := fillIntents(f, o, 0, regionsOf(size), clean); err != nil {
		return errors.Join(classify("create", rel, err), f.Close(), os.Remove(tmp))
	}
	return v.publish(f, tmp, full, rel)
}

// fillIntents allocates the file up to its last block and writes those from the given one on, all
// dirty or all clean. Written, not only allocated: nothing is left that a later write would have to
// ask the filesystem for.
func fillIntents(f *os.File, o *intentOwner, from int, regions int64, clean bool) error {
	blocks := blocksFor(regions)
	err := allocate(f, 0, int64(from)*intentBlock, int64(blocks-from)*intentBlock)
	if err != nil {
		return err
	}
	var words [blockWords]uint64
	buf := make([]byte, intentBlock)
	for b := from; b < blocks; b++ {
		clear(words[:])
		if !clean {
			setBits(words[:], 0, min(blockRegions, regions-int64(b)*blockRegions)-1)
		}
		o.encode(buf, uint32(b), words[:])
		if _, err := f.WriteAt(buf, int64(b)*intentBlock); err != nil {
			return err
		}
	}
	return nil
}

// allocate gives a range of a file its space; mode is that of fallocate(2). Where the filesystem
// knows no fallocate the writes that follow do it.
func allocate(f *os.File, mode uint32, off, length int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), mode, off, length)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// load reads the file, and makes it as long as the LUN needs and every block of it valid.
func (x *Intents) load(size int64) error {
	st, err := x.f.Stat()
	if err != nil {
		return classify("stat", x.path, err)
	}
	have := int(min(st.Size()/intentBlock, MaxIntentSize/RegionSize/blockRegions+1)) // a part of a block counts as none
	x.resize(regionsOf(size))
	if lacks := blocksFor(x.regions) - have; lacks > 0 {
		x.s.log.Info("the write-intent file lacks blocks; counting every region of them as dirty", "file", x.path, "blocks", lacks)
		x.unreadable += lacks
	}
	if err := x.extend(have); err != nil {
		return err
	}
	buf := make([]byte, intentBlock)
	for b := range blocksFor(x.regions) {
		from, to := x.wordsOf(b)
		_, err := io.ReadFull(io.NewSectionReader(x.f, int64(b)*intentBlock, intentBlock), buf)
		if err == nil {
			err = x.owner.decode(buf, uint32(b), x.set[from:to])
		}
		if err == nil {
			x.trim()
			copy(x.durable[from:to], x.set[from:to])
			continue
		}
		x.unreadable++
		x.s.log.Warn("a write-intent block cannot be read; counting every region of it as dirty", "file", x.path, "block", b, "err", err)
		setBits(x.set, int64(b)*blockRegions, min(int64(b+1)*blockRegions, x.regions)-1)
		x.mu.Lock()
		err = x.writeLocked(b)
		x.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// resize makes the maps hold n regions, new ones clear.
func (x *Intents) resize(n int64) {
	x.regions = n
	grow := make([]uint64, wordsFor(n)-len(x.set))
	x.set, x.durable = append(x.set, grow...), append(x.durable, grow...)
}

// trim clears the bits beyond the last region.
func (x *Intents) trim() {
	if r := x.regions % 64; r != 0 && len(x.set) > 0 {
		x.set[len(x.set)-1] &= 1<<r - 1
	}
}

// extend allocates the blocks that the file lacks, and writes them all dirty.
func (x *Intents) extend(have int) error {
	want := blocksFor(x.regions)
	if have >= want {
		return nil
	}
	err := x.s.Failed()
	if err != nil {
		return err
	}
	if err = x.s.fault(FaultTruncate, x.path, int64(have)*intentBlock, int64(want)*intentBlock); err == nil {
		err = fillIntents(x.f, &x.owner, have, x.regions, false)
	}
	if err == nil {
		err = x.f.Sync() // the blocks are, through O_DSYNC; the file's length with certainty
	}
	if err != nil {
		return classify("extend", x.path, err)
	}
	return nil
}

// Grow follows an expansion of the LUN to size bytes; a smaller size is ErrShrink. ErrNoSpace
// changes nothing. New regions within the last block start clear, since nothing was written there;
// those of new blocks start dirty, as a block that a crash lost would.
func (x *Intents) Grow(size int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := regionsOf(size)
	switch {
	case x.closed:
		return fmt.Errorf("intents %s: %w", x.path, os.ErrClosed)
	case n < x.regions:
		return fmt.Errorf("intents %s: %w", x.path, ErrShrink)
	case size > MaxIntentSize:
		return fmt.Errorf("intents %s: size %d: %w", x.path, size, ErrRange)
	}
	old, have := x.regions, blocksFor(x.regions)
	x.regions = n
	if err := x.extend(have); err != nil {
		x.regions = old
		return err
	}
	x.resize(n)
	if first := int64(have) * blockRegions; first < n {
		setBits(x.set, first, n-1)
		setBits(x.durable, first, n-1)
	}
	return nil
}

// removeIntents deletes the file of a LUN that is about to be deleted, durably: what is deleted
// first cannot outlive the other, and a LUN without intents is all dirty.
func (v *BackingVolume) removeIntents(id string) error {
	full, rel, err := v.path(kindIntents, id)
	if err != nil {
		return err
	}
	if err := os.Remove(full); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return classify("delete", rel, err)
	}
	if err := fd.SyncDir(filepath.Dir(full)); err != nil {
		err = classify("delete", rel, err)
		v.s.fail(err)
		return err
	}
	return nil
}

// removeOrphans deletes intents of LUNs that are not there: a LUN made later under the same uuid
// must not find them.
func (v *BackingVolume) removeOrphans() error {
	dir := v.folder(kindIntents)
	err := v.sweep(dir, intentSuffix, kindLUN, func(id string) {
		v.s.log.Info("removed a write-intent file that belongs to no LUN", "lun", id)
	})
	if err != nil {
		return err
	}
	return fd.SyncDir(dir)
}

// sweep removes files of a folder that have a suffix and the uuid of an object of a kind that is
// not there; found may be nil.
func (v *BackingVolume) sweep(dir, suffix string, k kind, found func(id string)) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		if there, err := v.exists(k, id); there || err != nil {
			continue // an error is not a file of this store: leave it
		}
		if found != nil {
			found(id)
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// CleanIntents clears the bits of a LUN that both nodes create with the same content, durably,
// before the LUN is opened. A crash before that leaves all bits set, which costs a comparison.
func (v *BackingVolume) CleanIntents(id string, size int64) error {
	bits, err := v.OpenIntents(id, size)
	if err != nil {
		return err
	}
	bits.Clear(nil)
	return bits.Close()
}
