package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/sums"
)

const (
	adoptStep  = 256 << 10 // bytes that writes wait for
	adoptEvery = 64 << 20  // bytes between two times that it is made durable how far adoption has come
)

// adoptLock is held by many writers or by one step of adoption, which comes first. Who waits for it
// waits on a condition, see longlock.
type adoptLock struct {
	mu      sync.Mutex
	cond    *sync.Cond
	writers int
	step    bool // one is held or waited for
}

func (l *adoptLock) lock() {
	l.mu.Lock()
	if l.cond == nil {
		l.cond = sync.NewCond(&l.mu)
	}
}

func (l *adoptLock) share() {
	l.lock()
	for l.step {
		l.cond.Wait()
	}
	l.writers++
	l.mu.Unlock()
}

func (l *adoptLock) unshare() {
	l.lock()
	if l.writers--; l.writers == 0 {
		l.cond.Broadcast()
	}
	l.mu.Unlock()
}

// take waits for the writers that are under way. One at a time takes it.
func (l *adoptLock) take() {
	l.lock()
	l.step = true
	for l.writers > 0 {
		l.cond.Wait()
	}
	l.mu.Unlock()
}

func (l *adoptLock) free() {
	l.lock()
	l.step = false
	l.cond.Broadcast()
	l.mu.Unlock()
}

// Adopt makes the checksums of an object that was there before any were kept, of what it holds now.
// Reads and writes continue, no write for longer than 256 KiB are read. It may be stopped at any
// time, and continues where it was, or 64 MiB before. Blocks that cannot be read are Bad. It reads
// at most SumsOptions.AdoptRate. ErrNoSpace says that there is none for the checksums; what is done
// stays so.
func (f *File) Adopt(ctx context.Context) error {
	o := f.obj
	if o == nil {
		return nil
	}
	select {
	case o.adopter <- struct{}{}:
		defer func() { <-o.adopter }()
	case <-ctx.Done():
		return ctx.Err()
	}
	known := o.sums.Adopted()
	if known == sums.AllAdopted {
		return nil
	}
	at := known * sumBlock
	durable := at
	buf := make([]byte, adoptStep)
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("adopt %s: %w", f.path, err)
		}
		if err := f.s.Failed(); err != nil {
			return err
		}
		size, err := f.Size()
		if err != nil {
			return err
		}
		if at >= size {
			break
		}
		n, read, err := f.adoptStep(buf, at, size)
		if err != nil {
			return err
		}
		if err := f.s.sums.rest(ctx, read); err != nil {
			return fmt.Errorf("adopt %s: %w", f.path, err)
		}
		at += n
		o.adopted.Store(at)
		if at-durable >= adoptEvery && at < size {
			if err := o.sums.Adopt(at / sumBlock); err != nil {
				return f.sumsError("adopt", err)
			}
			durable = at
		}
	}
	// Of what the object may have grown by since, too: it is zero, or was written with its
	// checksums.
	return f.sumsError("adopt", o.sums.Adopt(allBlocks))
}

// rest waits for as long as so many bytes may take.
func (s *sumsStore) rest(ctx context.Context, n int64) error {
	if s.rate <= 0 || n == 0 {
		return nil
	}
	return rest(ctx, time.Duration(n*int64(time.Second)/s.rate))
}

// adoptStep adopts what is at off, and returns how much, and how much of it was read.
func (f *File) adoptStep(buf []byte, off, size int64) (n, read int64, err error) {
	// A hole needs nothing: its checksums are zero, and who writes into it from now on puts others.
	run, data, err := f.Extents(off, size-off)
	if err != nil {
		return 0, 0, err
	}
	if off+run < size {
		run &^= sumBlock - 1
	}
	if !data && run > 0 {
		return run, 0, nil
	}
	// No write is under way: what was read before one must not become the checksum of the block
	// after it.
	f.obj.adopting.take()
	defer f.obj.adopting.free()
	p := buf[:min(int64(len(buf)), size-off)]
	return int64(len(p)), int64(len(p)), f.eachReadable(p, off, f.adoptBlocks)
}

// adoptBlocks gives those blocks their checksums that have none.
func (f *File) adoptBlocks(p []byte, off int64, readable bool) error {
	o := f.obj
	first := off / sumBlock
	if !readable {
		f.s.log.Error("a block cannot be read; its content is lost", "file", f.path, "offset", off, "bytes", len(p))
		return f.sumsError("adopt", o.sums.SetBad(first, sums.Blocks(int64(len(p)))))
	}
	faults, err := o.sums.Check(first, p)
	if err != nil {
		return f.sumsError("adopt", err)
	}
	for len(faults) > 0 {
		if faults[0].Want != sums.Unknown {
			faults = faults[1:] // a read will show it
			continue
		}
		n := 1
		for n < len(faults) && faults[n].Want == sums.Unknown && faults[n].Block == faults[0].Block+int64(n) {
			n++
		}
		from := faults[0].Block*sumBlock - off
		if err := o.sums.Put(faults[0].Block, p[from:min(from+int64(n)*sumBlock, int64(len(p)))]); err != nil {
			return f.sumsError("adopt", err)
		}
		faults = faults[n:]
	}
	return nil
}

// Adopted returns how many bytes of the object have checksums, and how many bytes it has; both
// are equal if no checksums are missing.
func (f *File) Adopted() (done, total int64) {
	total, err := f.Size()
	if err != nil {
		return 0, 0 // closed
	}
	if f.obj == nil {
		return total, total
	}
	known := f.obj.sums.Adopted()
	if known >= sums.Blocks(total) {
		return total, total
	}
	return min(max(known*sumBlock, f.obj.adopted.Load()), total), total
}

// settle reads what is in doubt, of which no write may be under way.
func (f *File) settle(ctx context.Context) error {
	o := f.obj
	if o.doubt.blocks() == 0 {
		return nil
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	for _, key := range o.doubt.list() {
		for at, end := key*doubtBlocks*sumBlock, min((key+1)*doubtBlocks*sumBlock, size); at < end; at += acceptStep {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("clone: %w", err)
			}
			if n := min(acceptStep, end-at); f.DoubtedIn(at, n) {
				if err := f.settleRange(at, n); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
