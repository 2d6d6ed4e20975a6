package pair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/exits"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

const remedy = "start with an empty state-dir and empty backing volumes to copy everything from the other node"

// lastLine is the last line that a node has logged since its log had this many bytes; a process
// that ended by a panic or a signal has logged more than one line.
func lastLine(t *testing.T, p *harness.Pair, i int, since int64) string {
	t.Helper()
	b, err := os.ReadFile(p.LogFile(i))
	if err != nil {
		t.Fatal(err)
	}
	said := string(b[since:])
	for _, x := range []string{"panic", "goroutine ", "fatal error", "SIGBUS", "SIGSEGV", "unexpected fault"} {
		if strings.Contains(said, x) {
			t.Errorf("a stack trace:\n%.2000s", said)
		}
	}
	lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
	return lines[len(lines)-1]
}

// refuses starts a node that cannot start, and checks how its process ends and what it logs.
func refuses(t *testing.T, ctx context.Context, p *harness.Pair, i int, says string) {
	t.Helper()
	st, err := os.Stat(p.LogFile(i))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.StartNode(i); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var end error
	err = harness.Wait(ctx, "the process has ended", func() (ended bool, saw string) {
		ended, end = p.Ended(i)
		return ended, fmt.Sprint(end)
	})
	if err := errors.Join(err, p.Kill(i)); err != nil { // if it is gone, the place is free then
		t.Fatal(err)
	}
	var x *exec.ExitError
	if !errors.As(end, &x) || x.ExitCode() != exits.Failed {
		t.Errorf("it ended with %v, want exit code %d", end, exits.Failed)
	}
	path := filepath.Join(p.State[i], "meta.db")
	if line := lastLine(t, p, i, st.Size()); !strings.HasPrefix(line, "gemel-target: "+path+": "+says) || !strings.Contains(line, remedy) {
		t.Errorf("want %s, %q and the remedy, got: %s", path, says, line)
	}
}

// A node whose metadata database is damaged or missing does not start: one line says which file it
// is, what is wrong and what to do.
func TestDamagedMetadata(t *testing.T) {
	p, ctx := startWith(t, func(*harness.Options) {})
	lun, m := createLUN(t, ctx, p, 32<<20, "a")
	l := startLoad(ctx, open(t, ctx, m), 8, 2048)
	l.more(t, ctx, 500)
	if err := p.Term(1); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.State[1], "meta.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const damaged, page = "the metadata database is damaged: ", 4096
	set := func(f func(b []byte) []byte) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, f(bytes.Clone(whole)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	each := func(at int, change byte) func(b []byte) []byte { // page behind the meta pages
		return func(b []byte) []byte {
			for p := 2 * page; p+at < len(b); p += page {
				b[p+at] ^= change
			}
			return b
		}
	}
	for _, c := range []struct {
		name string
		f    func(b []byte) []byte
	}{
		{"no bytes", func([]byte) []byte { return nil }},
		{"cut after the meta pages", func(b []byte) []byte { return b[:2*page] }},
		{"cut between pages", func(b []byte) []byte { return b[:3*page] }},
		{"cut within a page", func(b []byte) []byte { return b[:3*page+7] }},
		{"zeros", func(b []byte) []byte { return make([]byte, len(b)) }},
		{"text", func([]byte) []byte { return bytes.Repeat([]byte("this is no database\n"), 4000) }},
		{"a meta page", func(b []byte) []byte { b[50]++; return b }},
		{"both meta pages", func(b []byte) []byte { b[50]++; b[page+50]++; return b }},
		{"numbers of pages", each(0, 0xff)},
		{"flags of pages", each(8, 0xff)},
		{"counts of elements", each(10, 0xff)},
		{"a count that is one less", each(10, 1)},
		{"pages that follow", each(12, 0xff)},
		{"elements", each(20, 0x5a)},
		{"a value that is another value", func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(`"size":33554432`), []byte(`"size":33554433`))
		}},
		{"a uuid that is another uuid", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(lun.Uuid), []byte(uuid.NewString())) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			set(c.f)
			refuses(t, ctx, p, 1, damaged)
		})
	}
	t.Run("a directory", func(t *testing.T) {
		if err := errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		refuses(t, ctx, p, 1, damaged)
	})
	t.Run("a symbolic link", func(t *testing.T) {
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path+".there", whole, 0o600), os.Symlink(path+".there", path)); err != nil {
			t.Fatal(err)
		}
		refuses(t, ctx, p, 1, damaged)
	})
	t.Run("missing", func(t *testing.T) {
		if err := errors.Join(os.Remove(path), os.Remove(path+".there")); err != nil {
			t.Fatal(err)
		}
		refuses(t, ctx, p, 1, "the metadata database is missing")
	})
	set(func(b []byte) []byte { return b })
	if err := p.StartNode(1); err != nil { // none of the starts has changed anything
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	finish(t, ctx, p, l, lun, m)
}

// The database is cut under a running node, and its next commit notices. The node ends with an
// error, not with a stack trace; it does not start again until an administrator has put an empty
// folder there; then everything is copied. Hosts continue all the time.
func TestMetadataCutUnderARunningNode(t *testing.T) {
	p, ctx := startWith(t, func(o *harness.Options) { o.Supervised = true })
	lun, m := createLUN(t, ctx, p, 32<<20, "b")
	l := startLoad(ctx, open(t, ctx, m), 8, 2048)
	l.more(t, ctx, 500)
	path := filepath.Join(p.State[1], "meta.db")
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Client(0).CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "another", SizeBytes: 1 << 20}); err != nil {
		t.Logf("the change that met it: %v", err)
	}
	if err := harness.Wait(ctx, "it has ended, and was refused", func() (bool, string) { return len(p.Exits(1)) >= 3, fmt.Sprint(p.Exits(1)) }); err != nil {
		t.Fatal(err)
	}
	if got := p.Exits(1)[:3]; !slices.Equal(got, []int{exits.Left, exits.Failed, exits.Failed}) {
		t.Errorf("exits %v", got)
	}
	l.more(t, ctx, 500)
	if err := p.Kill(1); err != nil {
		t.Fatal(err)
	}
	if line := lastLine(t, p, 1, 0); !strings.HasPrefix(line, "gemel-target: "+path+": the metadata database is damaged: ") || !strings.Contains(line, remedy) {
		t.Errorf("the next life said: %s", line)
	}
	said, err := os.ReadFile(p.LogFile(1))
	if err != nil || !strings.Contains(string(said), "gemel-target: this node has stopped serving: the process ends, and must be started again: ") || !strings.Contains(string(said), path+": the metadata database is damaged: it has 4096 bytes") {
		t.Errorf("last words of the first life: %v\n%s", err, said)
	}
	if err := os.RemoveAll(p.State[1]); err != nil {
		t.Fatal(err)
	}
	if err := p.StartNode(1); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	finish(t, ctx, p, l, lun, m)
}
