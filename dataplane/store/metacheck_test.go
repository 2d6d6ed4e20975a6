package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// What bbolt writes is taken, whatever was done to it, and bbolt's own check takes it too.
func TestCheckTakesWhatBboltWrites(t *testing.T) {
	for seed := range uint64(30) {
		dir, id, want := metaDir(t, seed, 1+int(seed)*3)
		d, err := openMeta(dir, dir, id)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got, err := d.read(); err != nil || !got.equal(want) {
			t.Errorf("seed %d: %v: it holds something else than was written", seed, err)
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
		withBolt(t, metaPath(dir), func(tx *bbolt.Tx) error {
			var errs []error
			for err := range tx.Check() {
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
	}
}

// patient is a database to be damaged. bare: as a release without checksums leaves it.
type patient struct {
	t          *testing.T
	dir        string
	file, mark []byte
	id         uuid.UUID
	want       contents
	bare       bool
	refused    int
	taken      int
}

func newPatient(t *testing.T, bare bool) *patient {
	t.Helper()
	dir, id, want := metaDir(t, 4, 60)
	p := &patient{t: t, dir: memoryDir(t), id: id, want: want, bare: bare, mark: readFile(t, filepath.Join(dir, metaMarkName))}
	if bare {
		p.mark = nil
		withBolt(t, metaPath(dir), func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(sumBucket)) })
	}
	p.file = readFile(t, metaPath(dir))
	// The pages behind those in use were never written to, and do not matter.
	var m metaPage
	for at := range 2 {
		x, err := parseMetaPage(p.file[at*os.Getpagesize():])
		if err != nil {
			t.Fatal(err)
		}
		if x.txid > m.txid {
			m = x
		}
	}
	p.file = p.file[:int64(m.pages)*m.pageSize]
	if m.pages < 40 {
		t.Fatalf("%d pages show little", m.pages)
	}
	return p
}

// judge opens a damaged file: it is refused, or what is damaged is nothing that counts, and then it
// remains a database. Without a checksum other content may be taken for right, but nothing ends the
// process.
func (p *patient) judge(what string, file []byte) {
	p.t.Helper()
	if err := p.open(file); err != nil {
		p.t.Errorf("%s: %v", what, err)
		if kept, err := os.CreateTemp("", "gemel-damaged-*.db"); err == nil {
			_, _ = kept.Write(file)
			_ = kept.Close()
			p.t.Logf("the file is kept as %s", kept.Name())
		}
	}
}

func (p *patient) open(file []byte) error {
	p.t.Helper()
	writeFile(p.t, metaPath(p.dir), file)
	if p.mark != nil {
		writeFile(p.t, filepath.Join(p.dir, metaMarkName), p.mark)
	}
	d, err := openMeta(p.dir, p.dir, p.id)
	if err != nil {
		p.refused++
		oneLine(p.t, err, ErrDamaged, metaPath(p.dir))
		return nil
	}
	p.taken++
	got, err := d.read()
	if err != nil || !p.bare && (!got.equal(p.want) || d.Older() != "") {
		return errors.Join(fmt.Errorf("it is not refused, and holds something else: %w", err), d.close())
	}
	if p.taken%10 != 0 {
		return d.close()
	}
	want := contents{}
	for b, m := range got {
		want[b] = maps.Clone(m)
	}
	rng := rand.New(rand.NewPCG(9, uint64(p.taken)))
	for range 3 {
		if err := change(rng, d, want); err != nil {
			return errors.Join(fmt.Errorf("it is not refused, and cannot be changed: %w", err), d.close())
		}
	}
	if err := d.close(); err != nil {
		return err
	}
	if d, err = openMeta(p.dir, p.dir, p.id); err != nil {
		return fmt.Errorf("it is not refused, and is after a change: %w", err)
	}
	if got, err := d.read(); err != nil || !got.equal(want) {
		return errors.Join(fmt.Errorf("it is not refused, and after a change it holds something else: %w", err), d.close())
	}
	return errors.Join(d.close(), os.Remove(filepath.Join(p.dir, metaMarkName)))
}

// Single bytes and whole pages of a database that has lived are changed: never a panic, never other
// content.
func TestDamagedDatabaseIsRefusedOrWhole(t *testing.T) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprintf("without checksums %v", bare), func(t *testing.T) {
			p := newPatient(t, bare)
			p.judge("unharmed", p.file)
			if p.taken != 1 {
				t.Fatal("refused as it was")
			}
			rng := rand.New(rand.NewPCG(1, 2))
			page := os.Getpagesize()
			pages := len(p.file) / page
			for i := range 2000 {
				at := rng.IntN(len(p.file))
				if i%3 == 0 { // where bbolt's own numbers are
					at = rng.IntN(pages)*page + rng.IntN(128)
				}
				b := bytes.Clone(p.file)
				b[at] ^= byte(1 + rng.IntN(255))
				p.judge(fmt.Sprintf("byte %d of page %d is %d, was %d", at%page, at/page, b[at], p.file[at]), b)
			}
			for i := range 300 {
				to, from := rng.IntN(pages), rng.IntN(pages)
				b := bytes.Clone(p.file)
				x := b[to*page : (to+1)*page]
				switch i % 4 {
				case 0:
					clear(x)
				case 1:
					copy(x, p.file[from*page:]) // a write that went elsewhere
				case 2:
					for k := range x {
						x[k] = byte(rng.Uint32())
					}
				case 3: // the same, with a header that fits
					for k := range x[16:] {
						x[16+k] = byte(rng.Uint32())
					}
				}
				p.judge(fmt.Sprintf("page %d, way %d, from %d", to, i%4, from), b)
			}
			t.Logf("%d pages: %d refused, %d taken", pages, p.refused, p.taken)
			if p.refused < 400 || p.taken < 400 {
				t.Error("this shows little")
			}
		})
	}
}

// Each byte of the parts that lead everywhere: meta pages, the list of free pages, roots.
func TestEveryByteOfTheFirstPages(t *testing.T) {
	p := newPatient(t, false)
	page := os.Getpagesize()
	for id := range 2 {
		for k := range boltHeader + boltMeta {
			for _, x := range []byte{1, 0x80, 0xFF} {
				b := bytes.Clone(p.file)
				b[id*page+k] ^= x
				before := p.refused
				p.judge(fmt.Sprintf("byte %d of meta page %d", k, id), b)
				if k >= boltHeader && p.refused == before {
					t.Errorf("byte %d of meta page %d is no news", k, id)
				}
			}
		}
	}
}

// A file of any length but the right one.
func TestCutDatabase(t *testing.T) {
	p := newPatient(t, false)
	page := os.Getpagesize()
	rng := rand.New(rand.NewPCG(3, 4))
	lengths := []int{0, 1, 15, 16, 79, 80, 81, 160, page - 1, page + 80, len(p.file) - 1}
	for n := 0; n < len(p.file); n += page {
		lengths = append(lengths, n, n+1+rng.IntN(page-1))
	}
	for _, n := range lengths {
		before := p.refused
		p.judge(fmt.Sprintf("%d bytes", n), p.file[:n])
		if p.refused == before {
			t.Errorf("%d of %d bytes are enough", n, len(p.file))
		}
	}
	p.judge("what is behind does not count", append(bytes.Clone(p.file), make([]byte, 3*page+17)...))
	if p.taken != 1 {
		t.Error("a file that is longer is refused")
	}
}

// A page that leads back to itself has no end; bbolt follows it until the stack has none left,
// which nothing recovers from.
func TestCircleOfPages(t *testing.T) {
	p := newPatient(t, false)
	page := os.Getpagesize()
	n := 0
	for at := 0; at < len(p.file); at += page {
		if native.Uint16(p.file[at+8:]) != flagBranch {
			continue
		}
		b := bytes.Clone(p.file)
		native.PutUint64(b[at+boltHeader+8:], uint64(at/page))
		before := p.refused
		p.judge(fmt.Sprintf("page %d leads to itself", at/page), b)
		n += p.refused - before
	}
	if n == 0 {
		t.Error("there is no such page: this shows nothing")
	}
}

func TestWhatIsNoDatabase(t *testing.T) {
	page := os.Getpagesize()
	for name, b := range map[string][]byte{
		"nothing":      {},
		"zeros":        make([]byte, 8*page),
		"text":         bytes.Repeat([]byte("this is no database\n"), 4000),
		"short text":   []byte("x"),
		"another file": bytes.Repeat([]byte{0xED}, 1<<20),
	} {
		dir := t.TempDir()
		writeFile(t, metaPath(dir), b)
		_, err := openMeta(dir, dir, uuid.New())
		t.Logf("%s: %v", name, err)
		oneLine(t, err, ErrDamaged, metaPath(dir))
		if !bytes.Equal(readFile(t, metaPath(dir)), b) {
			t.Errorf("%s: what is refused was changed", name)
		}
	}
	for name, put := range map[string]func(path string) error{
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a symbolic link": func(path string) error { return os.Symlink(path+".other", path) },
		"a device":        func(path string) error { return mkfifo(path) },
	} {
		dir, id, _ := metaDir(t, 1, 2)
		if err := os.Rename(metaPath(dir), metaPath(dir)+".other"); err != nil {
			t.Fatal(err)
		}
		if err := put(metaPath(dir)); err != nil {
			t.Fatal(err)
		}
		_, err := openMeta(dir, dir, id)
		t.Logf("%s: %v", name, err)
		oneLine(t, err, ErrDamaged, metaPath(dir))
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, mib := range []int{1, 16, 48} {
		b.Run(fmt.Sprintf("%d MiB", mib), func(b *testing.B) {
			dir, id := b.TempDir(), uuid.New()
			if err := createMeta(dir, id); err != nil {
				b.Fatal(err)
			}
			d, err := openMeta(dir, dir, id)
			if err != nil {
				b.Fatal(err)
			}
			value := bytes.Repeat([]byte("gemel "), 512)
			if err := d.Update(func(tx *Tx) error {
				for i := range mib << 20 / len(value) {
					if err := tx.Put("luns", uuid.NewSHA1(id, fmt.Append(nil, i)).String(), value); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			if err := d.close(); err != nil {
				b.Fatal(err)
			}
			st, err := os.Stat(metaPath(dir))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(st.Size())/(1<<20), "MiB-file")
			for b.Loop() {
				d, err := openMeta(dir, dir, id)
				if err != nil {
					b.Fatal(err)
				}
				_ = d.close()
			}
		})
	}
}
