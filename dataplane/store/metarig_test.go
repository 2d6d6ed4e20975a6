package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// contents are what a database holds, by bucket and key.
type contents map[string]map[string]string

func (c contents) equal(o contents) bool {
	return maps.EqualFunc(c, o, func(a, b map[string]string) bool { return maps.Equal(a, b) })
}

// read gives all that a database holds.
func (d *DB) read() (contents, error) {
	all := contents{}
	err := d.View(func(tx *Tx) error {
		names, err := tx.Buckets()
		if err != nil {
			return err
		}
		for _, b := range names {
			m := map[string]string{}
			if err := tx.Each(b, func(key string, value []byte) error { m[key] = string(value); return nil }); err != nil {
				return err
			}
			for key, want := range m {
				if v, err := tx.Get(b, key); err != nil || string(v) != want {
					return errors.Join(err, fmt.Errorf("%s/%s is %q and %q", b, key, v, want))
				}
			}
			all[b] = m
		}
		return nil
	})
	return all, err
}

// change makes a random transaction, and the same one in want.
func change(rng *rand.Rand, d *DB, want contents) error {
	return d.Update(func(tx *Tx) error {
		for range 1 + rng.IntN(20) {
			bucket, key := []string{"copying", "hosts", "life", "luns", "snapshots"}[rng.IntN(5)], fmt.Sprintf("key-%03d", rng.IntN(150))
			switch k := rng.IntN(20); {
			case k == 0:
				delete(want, bucket)
				if err := tx.Drop(bucket); err != nil {
					return err
				}
			case k < 7:
				delete(want[bucket], key)
				if err := tx.Delete(bucket, key); err != nil {
					return err
				}
			default:
				size := 1 + rng.IntN(300)
				if rng.IntN(20) == 0 {
					size = 5000 + rng.IntN(9000) // pages that follow the first one
				}
				v, err := json.Marshal(map[string]any{"uuid": key, "size": rng.Uint32(), "labels": strings.Repeat("x", size)})
				if err != nil {
					return err
				}
				if want[bucket] == nil {
					want[bucket] = map[string]string{}
				}
				want[bucket][key] = string(v)
				if err := tx.Put(bucket, key, v); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// memoryDir is a folder in memory where there is one: nothing here is about what a disk keeps.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gemel-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// metaDir is a folder with a database that has lived, and what it holds. Which page holds what is
// bbolt's choice, and another one each time.
func metaDir(t *testing.T, seed uint64, changes int) (dir string, id uuid.UUID, want contents) {
	t.Helper()
	dir, id, want = memoryDir(t), uuid.New(), contents{}
	if err := createMeta(dir, id); err != nil {
		t.Fatal(err)
	}
	d, err := openMeta(dir, dir, id)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for range changes {
		if err := change(rng, d, want); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := d.read(); err != nil || !got.equal(want) {
		t.Fatalf("%v: it holds something else than was written", err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	return dir, id, want
}

// withBolt opens a database as a release without checksums does.
func withBolt(t *testing.T, path string, f func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(f), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// oneLine checks a message: of one line, with the file and what to do.
func oneLine(t *testing.T, err error, want error, path string) {
	t.Helper()
	switch {
	case !errors.Is(err, want):
		t.Errorf("%v, want %v", err, want)
	case strings.ContainsAny(err.Error(), "\n\r") || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), "start with an empty state-dir"):
		t.Errorf("the message is not a line with file and remedy: %q", err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func metaPath(dir string) string { return filepath.Join(dir, metaFile) }

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }
