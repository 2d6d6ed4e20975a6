package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// copyAll is what to do about a store whose metadata are lost.
const copyAll = "check the disk, then start with an empty state-dir and empty backing volumes to copy everything from the other node; " +
	"if this node was the only member, keep the files: see docs/operations.md, \"Damaged metadata\""

func damaged(path string, what error) error {
	if errors.Is(what, ErrNewer) {
		return fmt.Errorf("%s: %w", path, what)
	}
	return fmt.Errorf("%s: %w: %w: %s", path, ErrDamaged, what, copyAll)
}

// createMeta makes a new database under a temporary name, durably: it gets its name after the store
// has one, so that a store without a database is one that has lost it.
func createMeta(dir string, id uuid.UUID) (err error) {
	tmp := filepath.Join(dir, metaFile+tmpSuffix)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(tmp, 0o600, &bbolt.Options{Timeout: lockTime})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte(sumBucket))
		if err != nil {
			return err
		}
		r := record{store: id, txid: uint64(tx.ID())}
		return b.Put([]byte(sumKey), r.encode())
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	return fd.SyncDir(dir)
}

// nameMeta gives a new database its name, if a crash has not let that happen.
func nameMeta(dir string) error {
	path := filepath.Join(dir, metaFile)
	tmp := path + tmpSuffix
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		err = os.Remove(tmp)
	case errors.Is(err, fs.ErrNotExist):
		err = os.Rename(tmp, path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, fd.SyncDir(dir))
}

// lockTime bounds the wait for the lock of a database, which is free while the lock of the store is
// held.
const lockTime = 5 * time.Second

// openMeta opens the database of a store and checks all of it. marks is the folder of the mark.
func openMeta(dir, marks string, id uuid.UUID) (_ *DB, err error) {
	if err := nameMeta(dir); err != nil {
		return nil, err
	}
	d := &DB{path: filepath.Join(dir, metaFile), store: id}
	if err := d.openFile(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = d.file.Close() // if bbolt has not
		}
	}()
	if d.mark, err = openMetaMark(marks); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.mark.close())
		}
	}()
	if err := d.check(); err != nil {
		return nil, damaged(d.path, err)
	}
	err = d.caught(func() (err error) {
		d.bolt, err = bbolt.Open(d.path, 0o600, &bbolt.Options{Timeout: lockTime, OpenFile: func(string, int, os.FileMode) (*os.File, error) { return d.file, nil }})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", d.path, err)
	}
	return d, nil
}

// openFile opens what has to be a file.
func (d *DB) openFile() error {
	st, err := os.Lstat(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: put it back if it was moved; else %s", d.path, ErrMissing, copyAll)
	case err != nil:
		return fmt.Errorf("open store: %w", err)
	case st.Mode()&fs.ModeSymlink != 0:
		return damaged(d.path, errors.New("it is a symbolic link, not a regular file"))
	case !st.Mode().IsRegular():
		return damaged(d.path, errors.New("it is a directory or a device, not a regular file"))
	}
	f, err := os.OpenFile(d.path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.EIO) {
		return damaged(d.path, fmt.Errorf("it cannot be opened: %w", syscall.EIO))
	}
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	d.file = f
	return nil
}

// check reads all of the file, and compares its content with its checksum and with the mark.
func (d *DB) check() error {
	var st unix.Stat_t
	err := fd.With(d.file, func(fd int) error {
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		_ = unix.Fadvise(fd, 0, st.Size, unix.FADV_WILLNEED) // pages are met in the order of their keys
		return nil
	})
	if err != nil {
		return err
	}
	d.links = uint64(st.Nlink)
	var r *record
	txid, err := checkBolt(d.file, st.Size, func(bucket string, key, value []byte) error {
		if bucket != sumBucket {
			d.sums.add(bucket, string(key), value)
			return nil
		}
		x, err := decodeRecord(value)
		if string(key) != sumKey {
			err = errRecord
		}
		r = &x
		return err
	})
	if err != nil {
		return err
	}
	return d.compare(txid, r)
}

// compare says whether the content is what was written last. A database without a checksum, or that
// was written to after its checksum, was used by a release that does not know checksums: 0.1.0. It
// gets one with the next transaction.
func (d *DB) compare(txid uint64, r *record) error {
	m := d.mark.last
	if r == nil {
		if d.mark.f != nil {
			return errors.New("the checksum of its content is missing")
		}
		return nil
	}
	switch {
	case r.store != d.store:
		return fmt.Errorf("it belongs to store %s, but this is store %s", r.store, d.store)
	case r.txid > txid || r.txid < txid && m.seq > r.seq && m.txid == txid:
		return fmt.Errorf("its checksum is of transaction %d, but the last transaction was %d", r.txid, txid)
	case r.txid == txid && r.total != d.sums.total:
		return errors.New("its content does not match its checksum")
	}
	if d.seq = r.seq; m.seq > r.seq {
		d.older = fmt.Sprintf("%s is an older copy: it has change %d, but change %d was made later: put back the newest copy, or let the other node copy its data to this node", d.path, r.seq, m.seq)
	}
	return nil
}
