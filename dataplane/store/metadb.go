package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync/atomic"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
	"github.com/gemel-storage/gemel/internal/longlock"
)

// DB is the metadata database, meta.db: buckets with keys and values. Only this package calls
// bbolt, because a page that cannot be read, a panic of bbolt and a commit that fails must have
// the same effect: the store is not trusted any more (R12), and this process does not use the
// database again. Buckets belong to their users.
type DB struct {
	path  string
	store uuid.UUID
	bolt  *bbolt.DB
	file  *os.File // bbolt's
	links uint64   // names that the file had
	onEnd func(cause error, known bool)

	mu     longlock.Mutex // held over a transaction, which may wait for the disk; the rest is its
	sums   entrySums
	mark   *metaMark
	seq    uint64 // of the last transaction
	size   int64  // bytes in use when the last transaction began
	older  string // why the database is not as it was; empty: it is
	stuck  bool   // bbolt may hold locks that are never released
	closed bool

	failed atomic.Pointer[error]
}

// Err is why the database is not used any more, nil while it is used.
func (d *DB) Err() error {
	if p := d.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// fail ends the use of the database, once. What is on disk is not known.
func (d *DB) fail(cause error) error { return d.end(cause, false) }

func (d *DB) end(cause error, known bool) error {
	err := fmt.Errorf("%s: %w", d.path, cause)
	if d.failed.CompareAndSwap(nil, &err) && d.onEnd != nil {
		d.onEnd(err, known)
	}
	return d.Err()
}

// otherContent is for an entry that is not what it has to be.
func (d *DB) otherContent(bucket, key string) error {
	return d.fail(fmt.Errorf("%w: %s/%s does not match its checksum", ErrDamaged, bucket, key))
}

// guard calls bbolt. A page fault, which is how the kernel tells of a mapped file that was cut or
// cannot be read, and a panic become errors, and end the use of the database.
func (d *DB) guard(f func() error) error {
	if err := d.Err(); err != nil {
		return err
	}
	return d.caught(f)
}

func (d *DB) caught(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // of this goroutine; bbolt starts none
	defer func() {
		if p := recover(); p != nil {
			d.stuck = true
			err = d.fail(fmt.Errorf("%w: %s", ErrDamaged, panicText(p)))
		}
	}()
	return f()
}

// panicText is a line.
func panicText(p any) string {
	if _, fault := p.(interface{ Addr() uintptr }); fault {
		return "a page in use cannot be read: the file was truncated, or the disk is failing"
	}
	return printable(fmt.Sprint(p))
}

// errClosed: the node stops. That is no failure.
var errClosed = errors.New("the metadata database is closed")

// begin starts a transaction. The caller holds mu.
func (d *DB) begin(writable bool) (*Tx, error) {
	t := &Tx{db: d}
	if d.closed {
		return t, errClosed
	}
	err := d.guard(func() (err error) {
		if err := d.look(d.size); err != nil {
			return err
		}
		if t.tx, err = d.bolt.Begin(writable); err != nil {
			return d.fail(err)
		}
		d.sums.begin()
		d.size = t.tx.Size()
		return d.look(d.size)
	})
	if err != nil && t.tx != nil {
		t.end()
	}
	return t, err
}

// look sees whether the file is still there, as long as it has to be. Its end is looked at before
// bbolt goes there: a fault can be caught, what a file that was cut and grew again reads as cannot.
func (d *DB) look(size int64) error {
	var st unix.Stat_t
	err := fd.With(d.file, func(fd int) error { return unix.Fstat(fd, &st) })
	switch {
	case err != nil:
		return d.fail(fmt.Errorf("%w: %w", ErrDamaged, err))
	case d.links > 0 && st.Nlink == 0:
		return d.fail(fmt.Errorf("%w: the file was removed, or replaced by another one", ErrDamaged))
	case st.Size < size:
		return d.fail(fmt.Errorf("%w: it has %d bytes, but %d bytes are in use: it was truncated", ErrDamaged, st.Size, size))
	}
	return nil
}

// View calls f with a read-only transaction.
func (d *DB) View(f func(tx *Tx) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	t, err := d.begin(false)
	if err != nil {
		return err
	}
	defer t.end()
	if err := f(t); err != nil {
		return err
	}
	return d.Err()
}

// Update calls f with a transaction and makes what it has changed durable, all of it or, if f
// returns an error, nothing. A commit that fails ends the use of the database and the trust in the
// store; one that finds no space ends the use only, and the next life has what was there before.
func (d *DB) Update(f func(tx *Tx) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	t, err := d.begin(true)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			t.end()
		}
	}()
	if err := f(t); err != nil {
		return err
	}
	now := markState{seq: d.seq, txid: uint64(t.tx.ID())}
	if d.older == "" {
		now.seq++
	}
	r := record{store: d.store, txid: now.txid, seq: now.seq, total: d.sums.total}
	if err := t.put(sumBucket, sumKey, r.encode()); err != nil {
		return d.fail(err)
	}
	if err := d.guard(t.tx.Commit); err != nil {
		return d.end(fmt.Errorf("cannot flush a change: %w", err), nothingWritten(err))
	}
	done = true
	d.sums.end(true)
	return d.move(now)
}

// move takes the count and the mark on after a commit. They stand still while the database is older
// than the mark, so that the right one may be put back.
func (d *DB) move(now markState) error {
	if d.older != "" {
		return nil
	}
	d.seq = now.seq
	if err := d.mark.write(now); err != nil && !noSpace(err) { // without space the mark stays behind the database, which is no sign of damage
		return d.fail(fmt.Errorf("cannot write its mark: %w", err))
	}
	return nil
}

// nothingWritten tells of a commit that the filesystem had no space for when it was to be written:
// the pages that count are as they were. A flush that says so has lost what was written before.
func nothingWritten(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p) && p.Op == "write" && noSpace(err)
}

// Older says how it is known that the database was put back to an earlier state; empty if it was
// not. Such a store needs a full copy (R6).
func (d *DB) Older() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.older
}

// Settle ends the state that Older reports: everything was copied from the peer.
func (d *DB) Settle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.older != "" {
		d.older, d.seq = "", d.mark.last.seq
	}
}

// Damaged returns the error for an entry that cannot be decoded as it was written: its text has
// the file and what to do.
func (d *DB) Damaged(what error) error { return damaged(d.path, what) }

// close closes the file. Where bbolt may be stuck only the locks on the file are given back; the
// rest goes with the process.
func (d *DB) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	err := d.mark.close()
	if !d.stuck {
		return errors.Join(err, d.bolt.Close())
	}
	unlock := func(fd int) error { return unix.Flock(fd, unix.LOCK_UN) } // the mapping keeps the file, and with it the lock
	return errors.Join(err, fd.With(d.file, unlock), d.file.Close())
}
