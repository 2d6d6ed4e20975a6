package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

func (p *testPair) meta(i int) string { return filepath.Join(p.cfg[i].StateDir, "meta.db") }

// damage changes a file.
func damage(t *testing.T, path string, f func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, f(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// One node's metadata are damaged while its process is away: it does not start, says in one line
// which file it is and what to do, and when that has been done it is copied to. The other one
// serves all along.
func TestDamagedMetadataAtTheStart(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(4*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.end(1)
	whole := p.read(p.meta(1))
	for name, f := range map[string]func(b []byte) []byte{
		"cut between pages":    func(b []byte) []byte { return b[:4096*3] },
		"cut within a page":    func(b []byte) []byte { return b[:4096*3+100] },
		"nothing":              func([]byte) []byte { return nil },
		"zeros":                func(b []byte) []byte { return make([]byte, len(b)) },
		"text":                 func(b []byte) []byte { return bytes.Repeat([]byte("no database\n"), 2000) },
		"the first meta page":  func(b []byte) []byte { b[40]++; return b },
		"the second meta page": func(b []byte) []byte { b[4096+40]++; return b },
		"the owner of a LUN": func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(`"owner":"a"`), []byte(`"owner":"b"`))
		},
		"the name of a LUN": func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(`"name":"lun-`), []byte(`"name":"nul-`))
		},
		"another uuid": func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(id), []byte(uuid.NewString())) },
		"all headers": func(b []byte) []byte {
			for at := 2 * 4096; at < len(b); at += 4096 {
				b[at+8] ^= 0xff
			}
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			damage(t, p.meta(1), f)
			if bytes.Equal(p.read(p.meta(1)), whole) {
				t.Fatal("nothing was changed")
			}
			refusedStart(t, p, store.ErrDamaged)
			damage(t, p.meta(1), func([]byte) []byte { return bytes.Clone(whole) })
		})
	}
	t.Run("missing", func(t *testing.T) {
		if err := os.Remove(p.meta(1)); err != nil {
			t.Fatal(err)
		}
		refusedStart(t, p, store.ErrMissing)
	})
	p.write(d, mib, 2)
	p.cfg[1].StateDir = t.TempDir()
	p.start(1)
	p.inSync()
	p.alike(id)
}

// What 0.1.0 leaves has no checksum: an entry that cannot be read and a state of its own that is
// missing are damage all the same.
func TestMetadataThatCannotBeRead(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(4*mib, "a")
	p.end(1)
	for name, change := range map[string]func(tx *store.Tx) error{
		"an object":               func(tx *store.Tx) error { return tx.Put(bucketLUNs, id, []byte(`{"uuid":"`)) },
		"a field of another kind": func(tx *store.Tx) error { return tx.Put(bucketLUNs, id, []byte(`{"uuid":7}`)) },
		"the head":                func(tx *store.Tx) error { return tx.Put(bucketMeta, keyHead, []byte(`x`)) },
		"its own state":           func(tx *store.Tx) error { return tx.Put(bucketState, keyState, []byte(`{"epoch":-1}`)) },
		"its own state is lost":   func(tx *store.Tx) error { return tx.Delete(bucketState, keyState) },
	} {
		whole := p.read(p.meta(1))
		st, err := store.Open(p.cfg[1].StateDir, store.Identity{Cluster: "test", Pair: "p0", Node: "b"}, store.Options{Log: p.cfg[1].Logger})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(st.DB().Update(change), st.Close()); err != nil {
			t.Fatal(err)
		}
		err = open(p.cfg[1])
		if !errors.Is(err, store.ErrDamaged) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), p.meta(1)) || !strings.Contains(err.Error(), "start with an empty state-dir") {
			t.Errorf("%s: %v", name, err)
		}
		damage(t, p.meta(1), func([]byte) []byte { return whole })
	}
}

func refusedStart(t *testing.T, p *testPair, want error) {
	t.Helper()
	err := open(p.cfg[1])
	if !errors.Is(err, want) || !strings.HasPrefix(err.Error(), p.meta(1)+": ") || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "start with an empty state-dir and empty backing volumes to copy everything from the other node") {
		t.Errorf("want a line with %s and the remedy, got: %v", p.meta(1), err)
	}
}

// The metadata of a node are damaged while it runs, or a change of them fails: it steps down at
// once, its last words name the file, its peer serves on, and what it had is not trusted.
func TestMetadataThatFailWhileTheNodeRuns(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(path string) error
		says string
	}{
		"cut":                 {func(path string) error { return os.Truncate(path, 0) }, "it was truncated"},
		"removed":             {os.Remove, "the file was removed"},
		"a commit that fails": {makeReadOnly, "bad file descriptor"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t).startBoth()
			id, m := p.lun(4*mib, "b")
			d := p.device(m)
			p.write(d, 0, 1)
			n := p.nodes[1]
			if err := c.fail(p.meta(1)); err != nil {
				t.Fatal(err)
			}
			other := uuid.NewString()
			if _, err := p.client(0).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: other, Name: "other", SizeBytes: mib}); err != nil {
				t.Logf("the change that met it: %v", err) // it may be asked again
			}
			p.until("a is alone and serves", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
			p.leaves(1, p.meta(1)+": ")
			if err := n.store.Failed(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the store: %v, want %q", err, c.says)
			}
			if err := n.saveIncarnation(pair.Incarnation{}); err == nil {
				t.Error("the database is used again")
			}
			p.write(d, mib, 2)
			if name == "a commit that fails" {
				p.start(1)
				p.inSync()
				if r := p.nodes[0].View().Resync; !r.Full {
					t.Errorf("what it had is trusted: %+v", r)
				}
			} else {
				if err := open(p.cfg[1]); !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrMissing) {
					t.Errorf("the next life: %v", err)
				}
				p.cfg[1].StateDir = t.TempDir()
				p.start(1)
				p.inSync()
			}
			p.alike(id)
		})
	}
}

// makeReadOnly replaces the descriptor that this process has of a file by a descriptor that cannot
// be written to, under the same number.
func makeReadOnly(path string) error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, x := range fds {
		name := filepath.Join("/proc/self/fd", x.Name())
		if to, err := os.Readlink(name); err != nil || to != path {
			continue
		}
		fd, err := strconv.Atoi(x.Name())
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(unix.Dup3(int(f.Fd()), fd, unix.O_CLOEXEC), f.Close())
	}
	return errors.New("it is not open")
}

// The database of a node is put back to an earlier state, alone: nothing of it is believed, and
// everything is copied.
func TestMetadataOfEarlierAreCopied(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(4*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.clean()
	p.end(1)
	early := p.read(p.meta(1))
	p.start(1)
	p.inSync()
	p.clean()
	p.end(1)
	if err := os.WriteFile(p.meta(1), early, 0o600); err != nil {
		t.Fatal(err)
	}
	log := p.keepLog(0)
	p.start(1)
	p.inSync()
	if r := p.nodes[0].View().Resync; !r.Full || r.Total != 4*mib {
		t.Errorf("%+v %s", r, log)
	}
	p.alike(id)
	p.counterpart()
}

// The only member's database is put back: it does not serve by what it says there, and says why.
// With the right one it serves.
func TestMetadataOfEarlierAtTheOnlyMember(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(4*mib, "a")
	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
	p.end(0)
	early := p.read(p.meta(0))
	p.start(0)
	p.until("a serves", func() bool { return p.nodes[0].View().Serving })
	if _, err := p.client(0).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil { // a host is fenced
		t.Fatal(err)
	}
	p.end(0)
	right := p.read(p.meta(0))
	if err := os.WriteFile(p.meta(0), early, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p.start(0)
		p.until("a says why it does not serve", func() bool {
			v := p.nodes[0].View()
			return !v.Serving && strings.Contains(v.Reason, "meta.db is an older copy")
		})
		p.end(0)
	}
	if err := os.WriteFile(p.meta(0), right, 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(0)
	p.until("a serves", func() bool { return p.nodes[0].View().Serving })
}
