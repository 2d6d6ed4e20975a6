package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/extents"
)

// Place is a directory of a backing volume in which data of its LUNs lies: the home, unless that is
// bare, or a member.
type Place struct {
	Number   uint8
	Name     string // HomePlace of the home
	Draining bool   // nothing new goes there, and what is there has to move away
	Fast     bool   // of the fast tier: nothing new goes there either, as long as there is another place
	dir      *BackingVolume
}

// HomePlace is the name of the home among the places of a volume.
const HomePlace = "home"

// ID of the directory.
func (p *Place) ID() string { return p.dir.id }

// Room is the size of a place and what is free there, in bytes.
func (p *Place) Room() (total, free int64, err error) { return p.dir.room() }

// Places of a volume's data, by number.
func (v *BackingVolume) Places() (list []Place) {
	v.drains.Lock()
	defer v.drains.Unlock()
	if !v.bare {
		list = append(list, Place{Number: homeNumber, Name: HomePlace, Draining: v.draining, Fast: v.fast, dir: v})
	}
	for _, m := range v.members {
		list = append(list, Place{Number: m.number, Name: m.memberName, Draining: m.draining, Fast: m.fast, dir: m.BackingVolume})
	}
	return list
}

// ErrNoPlace: the volume has no place of that name.
var ErrNoPlace = errors.New("the backing volume has no such member")

// ErrLastPlace: nothing would be left to put data in.
var ErrLastPlace = errors.New("it is the last member that is not drained")

// Drain says, durably, that nothing new goes to a place and that what is there has to move away;
// or, with on unset, that it does not. It moves nothing. ErrNoPlace, ErrLastPlace,
// ErrNoSpace.
func (v *BackingVolume) Drain(name string, on bool) error {
	v.objects.Lock() // no object is made by an earlier rule afterwards
	defer v.objects.Unlock()
	list := v.Places()
	i := slices.IndexFunc(list, func(p Place) bool { return p.Name == name })
	switch {
	case i < 0 || len(v.members) == 0:
		return fmt.Errorf("drain %q of backing volume %s: %w", name, v.name, ErrNoPlace)
	case list[i].Draining == on:
		return nil
	case on && !slices.ContainsFunc(list, func(p Place) bool { return p.Name != name && !p.Draining }):
		return fmt.Errorf("drain %q of backing volume %s: %w", name, v.name, ErrLastPlace)
	}
	rec, err := v.readMembers()
	if err != nil {
		return err
	}
	if name == HomePlace {
		rec.HomeDraining = on
	} else {
		rec.find(name).Draining = on
	}
	if err := writeRecord(filepath.Join(v.dir, membersFile), rec); err != nil {
		return classify("write", filepath.Join(v.rel, membersFile), err)
	}
	v.drains.Lock()
	defer v.drains.Unlock()
	list[i].dir.draining = on
	return nil
}

// Spread says whether extents of the LUN can lie in several places.
func (f *File) Spread() bool { return f.places != nil && f.places.lost == nil }

// Open says whether the file is not closed yet.
func (f *File) Open() bool { return !f.left.Load() }

// ExtentCount is how many extents a LUN has that can be spread, of 4 MiB; 0 of another one.
func (f *File) ExtentCount() int64 {
	if !f.Spread() {
		return 0
	}
	return f.places.m.Extents()
}

// Where is the number of the place in which an extent lies.
func (f *File) Where(extent int64) uint8 {
	if !f.Spread() {
		return homeNumber
	}
	return f.places.m.At(extent)
}

// MoveExtent moves an extent to the place of a number while hosts use it, and returns when it lies
// there durably. Errors are those of extents.Spread.Move, and extents.ErrNoVolume for a LUN that
// cannot be spread.
func (f *File) MoveExtent(ctx context.Context, extent int64, to uint8) error {
	if !f.Spread() {
		return fmt.Errorf("move extent %d of %s: %w", extent, f.path, extents.ErrNoVolume)
	}
	if err := f.s.Failed(); err != nil {
		return err
	}
	return f.places.spread.Move(ctx, extent, to)
}

// MoveExtentLike is MoveExtent of an extent that another LUN or snapshot has in that place already,
// with much the same content: what is the same is shared with it. Where that is not so, or cannot
// be, it is MoveExtent.
func (f *File) MoveExtentLike(ctx context.Context, extent int64, to uint8, relative *File) error {
	if !f.Spread() || relative == nil || !relative.Spread() || relative.places == f.places || extent >= relative.ExtentCount() || relative.Where(extent) != to {
		return f.MoveExtent(ctx, extent, to)
	}
	x, y, off := relative.places.images[to], f.places.images[to], extent*extents.Size
	size, err := f.Size()
	other, oerr := relative.Size()
	if err := errors.Join(err, oerr, f.s.Failed()); err != nil {
		return err
	}
	length := min(extents.Size, size-off, other-off)
	if x == nil || y == nil || !x.reflink || length <= 0 {
		return f.MoveExtent(ctx, extent, to)
	}
	if _, err := x.writeOut(off, length); err != nil { // else hosts would wait for it
		return err
	}
	return f.places.spread.MoveLike(ctx, extent, to, func() error {
		if err := f.s.fault(FaultClone, y.path, off, length); err != nil {
			return err
		}
		return x.share(y, off, length)
	})
}

// SweepExtents frees what crashes have left of extents that were being moved.
func (f *File) SweepExtents(ctx context.Context) (swept int, err error) {
	if !f.Spread() {
		return 0, nil
	}
	return f.places.spread.Sweep(ctx)
}

// AllocatedIn is what the LUN occupies in the place of a number, in bytes. What is shared is
// counted in every sharer, and takes so much space when it moves.
func (f *File) AllocatedIn(number uint8) (int64, error) {
	if !f.Spread() || f.places.images[number] == nil {
		return 0, nil
	}
	return f.places.images[number].Allocated()
}

// CountExtents is how many extents of the LUN lie in each place, by number.
func (f *File) CountExtents() (n [256]int64) {
	if !f.Spread() {
		return n
	}
	for e := range f.places.m.Extents() {
		n[f.places.m.At(e)]++
	}
	return n
}

// Extent says whether anything of an extent is written, and whether a snapshot, a clone or their
// source shares it: then a move takes space.
func (f *File) Extent(extent int64) (data, shared bool, err error) {
	off := extent * extents.Size
	size, err := f.Size()
	if err != nil || off >= size {
		return false, false, err
	}
	err = f.each(off, min(extents.Size, size-off), func(x *image, off, n int64) error {
		hole, err := x.isHole(off, n)
		if hole || err != nil {
			return err
		}
		data = true
		shared, err = x.shared(off, n)
		return err
	})
	return data, shared, err
}

// fiemap and fiemapExtent are those of linux/fiemap.h.
type fiemap struct {
	start, length           uint64
	flags, mapped, count, _ uint32
	extents                 [64]fiemapExtent
}

type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

const (
	fsFiemap     = 0xc020660b // FS_IOC_FIEMAP
	fiemapLast   = 0x1
	fiemapShared = 0x2000
)

// shared says whether another file shares blocks of a range. A filesystem that cannot say shares
// none.
func (f *image) shared(off, length int64) (bool, error) {
	if !f.reflink {
		return false, nil
	}
	for end := off + length; off < end; {
		m := fiemap{start: uint64(off), length: uint64(end - off), count: 64}
		err := f.control(func(fd int) error {
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsFiemap, uintptr(unsafe.Pointer(&m))); errno != 0 {
				return errno
			}
			return nil
		})
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			return false, nil
		case err != nil:
			return false, classify("fiemap", f.path, err)
		case m.mapped == 0:
			return false, nil
		}
		for _, x := range m.extents[:min(m.mapped, m.count)] {
			if x.flags&fiemapShared != 0 {
				return true, nil
			}
			if off = int64(x.logical + x.length); x.flags&fiemapLast != 0 {
				return false, nil
			}
		}
	}
	return false, nil
}
