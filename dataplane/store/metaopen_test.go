package store

import (
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// A store without its database is refused, and gets no new database, whatever else is there or
// missing.
func TestMissingDatabaseIsRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		lost  []string
		wants error
	}{
		{"the database", []string{metaFile}, ErrMissing},
		{"the database and its mark", []string{metaFile, "volumes/default/" + metaMarkName}, ErrMissing},
		{"the database and all images", []string{metaFile, "volumes"}, ErrMissing},
		{"the database and the identity", []string{metaFile, identityFile}, ErrForeign},
		{"the identity", []string{identityFile}, ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := filled(t, dir)
			if err := errors.Join(s.Default().CreateLUN(lunA, 1<<20, NoBirth), s.Close()); err != nil {
				t.Fatal(err)
			}
			for _, name := range c.lost {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the first start leaves nothing that the second one would take for a database
				s, err := Open(dir, testIdent, Options{})
				if !errors.Is(err, c.wants) {
					t.Fatalf("%v, store %v", err, s)
				}
				if c.wants == ErrMissing {
					oneLine(t, err, ErrMissing, metaPath(dir))
				}
			}
		})
	}
}

// An empty state folder beside backing volumes that this node has used with another store: its disk
// is not mounted, as like as not. Nothing is written into it.
func TestEmptyStateFolderBesideBackingVolumes(t *testing.T) {
	fast, empty := t.TempDir(), t.TempDir()
	s, err := Open(t.TempDir(), testIdent, shared(BackingVolumeDir{"fast", fast}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(empty, testIdent, shared(BackingVolumeDir{"fast", fast}))
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), s.ID()) || !strings.Contains(err.Error(), "mount the disk") || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
	for _, name := range []string{identityFile, metaFile, metaFile + tmpSuffix} {
		if _, err := os.Stat(filepath.Join(empty, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", name, err)
		}
	}
}

// A crash while a store is made leaves a store that can be made again, or a whole one.
func TestCrashWhileAStoreIsMade(t *testing.T) {
	left := func(t *testing.T, change func(dir string) error) string {
		t.Helper()
		dir := t.TempDir()
		if err := createMeta(dir, uuid.New()); err != nil {
			t.Fatal(err)
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, dir := range map[string]string{
		"before store.json":       left(t, func(string) error { return nil }),
		"in the database's pages": left(t, func(dir string) error { return os.Truncate(metaPath(dir)+tmpSuffix, 5000) }),
		"nothing of the database": left(t, func(dir string) error { return os.Truncate(metaPath(dir)+tmpSuffix, 0) }),
		"before the database has its name": left(t, func(dir string) error {
			id := uuid.New()
			return errors.Join(createMeta(dir, id), writeRecord(filepath.Join(dir, identityFile), identityRecord{Format: Format, ID: id.String(), Identity: testIdent}))
		}),
	} {
		s, err := Open(dir, testIdent, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := errors.Join(s.DB().Update(many), s.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(metaPath(dir) + tmpSuffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the temporary database is still there: %v", name, err)
		}
	}
}

// A database that was put back to an earlier state, alone, is known, over restarts, until
// everything has been copied; and the right one may be put back until then.
func TestDatabaseOfEarlier(t *testing.T) {
	dir := t.TempDir()
	older := func(want bool) {
		t.Helper()
		s, err := Open(dir, testIdent, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if why := s.DB().Older(); (why != "") != want || want && !strings.Contains(why, "is an older copy") {
			t.Errorf("older: %q", why)
		}
		for i := range 5 {
			if err := s.DB().Update(func(tx *Tx) error { return tx.Put("life", fmt.Sprint(i), []byte("x")) }); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	older(false)
	early := readFile(t, metaPath(dir))
	older(false)
	right := readFile(t, metaPath(dir))
	writeFile(t, metaPath(dir), early)
	for range 3 { // by then it has seen more changes than the right one
		older(true)
	}
	writeFile(t, metaPath(dir), right)
	older(false)
	writeFile(t, metaPath(dir), early)
	older(true)
	s, err := Open(dir, testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.DB().Settle()
	if err := errors.Join(s.DB().Update(many), s.Close()); err != nil {
		t.Fatal(err)
	}
	older(false)
	older(false)
	writeFile(t, metaPath(dir), right) // which is the older one now
	older(true)
}

// One step back is one too many: the mark is behind the database, never ahead of it.
func TestDatabaseOfOneChangeEarlier(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir)
	early := readFile(t, metaPath(dir))
	if err := errors.Join(s.DB().Update(many), s.Close()); err != nil {
		t.Fatal(err)
	}
	right := readFile(t, metaPath(dir))
	writeFile(t, metaPath(dir), early)
	if s = open(t, dir, Options{}); s.DB().Older() == "" {
		t.Error("the last change is gone, without an error")
	}
	// A power cut may have taken the mark back, or a part of it; that is no reason to distrust
	// anything.
	for name, change := range map[string]func(b []byte) []byte{
		"lost":    func([]byte) []byte { return nil },
		"torn":    func(b []byte) []byte { clear(b[markBlock+8 : markBlock+20]); return b },
		"cleared": func(b []byte) []byte { clear(b); return b },
		"short":   func(b []byte) []byte { return b[:100] },
	} {
		dir := t.TempDir()
		s := filled(t, dir)
		if err := errors.Join(s.DB().Update(many), s.Close()); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "volumes", DefaultBackingVolume, metaMarkName)
		b := change(readFile(t, path))
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if b != nil {
			writeFile(t, path, b)
		}
		if s = open(t, dir, Options{}); s.DB().Older() != "" {
			t.Errorf("%s: %s", name, s.DB().Older())
		}
		if err := s.DB().Update(many); err != nil {
			t.Error(err)
		}
	}
	if bytes.Equal(early, right) {
		t.Error("this shows nothing")
	}
}

// A database of 0.1.0 has no checksum, and 0.1.0 passes over one: it is read, gets its checksum
// with the first change, and may go back and come again as often as anybody likes.
func TestDatabaseOfARelaseWithoutChecksums(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(dir, "volumes", DefaultBackingVolume, metaMarkName)
	withBolt(t, metaPath(dir), func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(sumBucket)) })
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s, err := Open(dir, testIdent, Options{})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if s.DB().Older() != "" {
			t.Error(s.DB().Older())
		}
		if err := s.DB().View(func(tx *Tx) error {
			n := 0
			err := tx.Each("luns", func(string, []byte) error { n++; return nil })
			if n != 26+i {
				t.Errorf("%d entries", n)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if err := errors.Join(s.DB().Update(func(tx *Tx) error { return tx.Put("life", "life", fmt.Append(nil, i)) }), s.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(mark); err != nil {
			t.Error(err)
		}
		// It counts from now on: a value that is changed behind its back is found.
		raw := readFile(t, metaPath(dir))
		if err := replace(metaPath(dir), strings.Repeat("<m>", 700), strings.Repeat("<n>", 700)); err != nil {
			t.Fatal(err)
		}
		_, err = Open(dir, testIdent, Options{})
		oneLine(t, err, ErrDamaged, metaPath(dir))
		writeFile(t, metaPath(dir), raw)
		withBolt(t, metaPath(dir), func(tx *bbolt.Tx) error { // the earlier release again
			return tx.Bucket([]byte("luns")).Put(fmt.Append(nil, "more-", i), []byte("x"))
		})
	}
}

// The checksum of a database that has lost it, has that of another store, of another transaction or
// of a newer release.
func TestChecksumThatIsNotItsOwn(t *testing.T) {
	set := func(change func(r *record) []byte) func(tx *bbolt.Tx) error {
		return func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(sumBucket))
			r, err := decodeRecord(b.Get([]byte(sumKey)))
			if err != nil {
				return err
			}
			r.txid = uint64(tx.ID())
			return b.Put([]byte(sumKey), change(&r))
		}
	}
	for name, c := range map[string]struct {
		change func(tx *bbolt.Tx) error
		want   error
		says   string
	}{
		"as it was":         {set(func(r *record) []byte { return r.encode() }), nil, ""},
		"lost":              {func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(sumBucket)) }, ErrDamaged, "missing"},
		"empty":             {func(tx *bbolt.Tx) error { return tx.Bucket([]byte(sumBucket)).Delete([]byte(sumKey)) }, ErrDamaged, "missing"},
		"another store":     {set(func(r *record) []byte { r.store = uuid.New(); return r.encode() }), ErrDamaged, "it belongs to store"},
		"other content":     {set(func(r *record) []byte { r.total[0]++; return r.encode() }), ErrDamaged, "its content does not match its checksum"},
		"of the future":     {set(func(r *record) []byte { r.txid++; return r.encode() }), ErrDamaged, "its checksum is of transaction"},
		"garbled":           {set(func(r *record) []byte { b := r.encode(); b[20]++; return b }), ErrDamaged, "cannot be read"},
		"short":             {set(func(r *record) []byte { return []byte{1} }), ErrDamaged, "cannot be read"},
		"of a newer format": {set(func(r *record) []byte { return reseal(r.encode(), 2) }), ErrNewer, "version 2"},
	} {
		dir := t.TempDir()
		s := filled(t, dir)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		withBolt(t, metaPath(dir), c.change)
		s, err := Open(dir, testIdent, Options{})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}

// The last transaction's pages never came to the disk, its number did: what is there is of earlier.
func TestContentOlderThanItsTransaction(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	last := s.DB().mark.last
	withBolt(t, metaPath(dir), func(tx *bbolt.Tx) error { return tx.Bucket([]byte("luns")).Put([]byte("m"), []byte("lost")) })
	b := make([]byte, 2*markBlock)
	markState{seq: last.seq + 1, txid: last.txid + 1}.encode(b)
	writeFile(t, filepath.Join(dir, "volumes", DefaultBackingVolume, metaMarkName), b)
	_, err := Open(dir, testIdent, Options{})
	oneLine(t, err, ErrDamaged, metaPath(dir))
}

// Only this package has bbolt's own hands on the database: elsewhere a failed commit would not end
// its use, and a page fault would end the process.
func TestNobodyElseUsesBbolt(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			if strings.HasPrefix(strings.Trim(i.Path.Value, `"`), "go.etcd.io/bbolt") {
				if seen++; filepath.Dir(path) != filepath.Join(root, "dataplane", "store") {
					t.Errorf("%s uses bbolt: use store.DB", path)
				}
			}
		}
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d files, %v", seen, err)
	}
}
