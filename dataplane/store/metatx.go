package store

import (
	"bytes"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// Tx is a transaction of the metadata database. The values that it returns are copies and stay
// valid after it has ended; the values that it is given must not change until then. A read error
// ends the use of the database, even if the caller ignores the error.
type Tx struct {
	db *DB
	tx *bbolt.Tx
}

// Buckets lists the buckets by name.
func (t *Tx) Buckets() (names []string, err error) {
	err = t.db.guard(func() error {
		return t.tx.ForEach(func(name []byte, _ *bbolt.Bucket) error {
			if string(name) != sumBucket {
				names = append(names, string(name))
			}
			return nil
		})
	})
	return names, err
}

// Get returns a value, nil where there is none.
func (t *Tx) Get(bucket, key string) (value []byte, err error) {
	err = t.db.guard(func() error {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			value = bytes.Clone(b.Get([]byte(key)))
		}
		if !t.db.sums.holds(bucket, key, value) {
			return t.db.otherContent(bucket, key)
		}
		return nil
	})
	return value, err
}

// Each calls f with each entry of a bucket, in the order of their keys; a bucket that does not
// exist has none. f changes nothing in it.
func (t *Tx) Each(bucket string, f func(key string, value []byte) error) error {
	var c *bbolt.Cursor
	var key string
	var value []byte
	n := 0
	step := func() (more bool, err error) {
		err = t.db.guard(func() error {
			var k, v []byte
			switch {
			case c != nil:
				k, v = c.Next()
			default:
				b := t.tx.Bucket([]byte(bucket))
				if b == nil {
					break
				}
				c = b.Cursor()
				k, v = c.First()
			}
			if key, value, more = string(k), bytes.Clone(v), k != nil; !more {
				if n != len(t.db.sums.entries[bucket]) {
					return t.db.otherContent(bucket, fmt.Sprintf("%d entries", n))
				}
				return nil
			}
			if n++; !t.db.sums.holds(bucket, key, value) {
				return t.db.otherContent(bucket, key)
			}
			return nil
		})
		return more, err
	}
	for {
		more, err := step()
		if err != nil || !more {
			return err
		}
		if err := f(key, value); err != nil {
			return err
		}
	}
}

// errEmptyValue: an entry without a value could not be distinguished from a missing entry.
var errEmptyValue = errors.New("an entry of the metadata database must have a value")

// Put sets a value, and creates the bucket if it does not exist.
func (t *Tx) Put(bucket, key string, value []byte) error {
	if len(value) == 0 {
		return fmt.Errorf("%s/%s: %w", bucket, key, errEmptyValue)
	}
	if err := t.put(bucket, key, value); err != nil {
		return err
	}
	t.db.sums.put(bucket, key, value)
	return nil
}

func (t *Tx) put(bucket, key string, value []byte) error {
	return t.db.guard(func() error {
		b, err := t.tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		return b.Put([]byte(key), value)
	})
}

// Delete removes an entry if it exists.
func (t *Tx) Delete(bucket, key string) error {
	err := t.db.guard(func() error {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			return b.Delete([]byte(key))
		}
		return nil
	})
	if err == nil {
		t.db.sums.remove(bucket, key)
	}
	return err
}

// Drop removes a bucket with all of its entries if it exists.
func (t *Tx) Drop(bucket string) error {
	err := t.db.guard(func() error {
		if t.tx.Bucket([]byte(bucket)) == nil {
			return nil
		}
		return t.tx.DeleteBucket([]byte(bucket))
	})
	if err == nil {
		t.db.sums.drop(bucket)
	}
	return err
}

// end takes a transaction back that was not committed.
func (t *Tx) end() {
	t.db.sums.end(false)
	_ = t.db.caught(t.tx.Rollback) // of one that failed there is nothing left to say
}
