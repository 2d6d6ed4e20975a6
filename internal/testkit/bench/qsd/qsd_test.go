package qsd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/bench/nbd"
)

const size = 64 << 20

func start(t *testing.T, o Options) (*Pair, *nbd.Client) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip("no pair here: ", err)
	}
	ctx := bounded(t)
	p, err := Start(ctx, t.TempDir(), t.TempDir(), size, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	c, err := nbd.Dial(ctx, "tcp", p.Address, p.Export)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return p, c
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestMirrorWritesBothNodes(t *testing.T) {
	for _, o := range []Options{{}, {TLS: true}} {
		t.Run(fmt.Sprintf("TLS=%v", o.TLS), func(t *testing.T) {
			p, c := start(t, o)
			ctx := bounded(t)
			if c.Size() != size {
				t.Fatalf("size %d, want %d", c.Size(), size)
			}
			// 32 writes in flight, then zeroes, then everything is read.
			want := make([]byte, size)
			if _, err := rand.Read(want); err != nil {
				t.Fatal(err)
			}
			const each, depth = 256 << 10, 32
			var next atomic.Int64
			done := make(chan error, depth)
			for range depth {
				r := &initiator.IO{Op: initiator.OpWrite}
				r.Done = func(r *initiator.IO) {
					at := next.Add(each) - each
					if r.Err != nil || at >= size {
						done <- r.Err
						return
					}
					r.Off, r.Buf, r.FUA = at, want[at:at+each], at%(8*each) == 0
					if err := c.Submit(r); err != nil {
						done <- err
					}
				}
				r.Done(r)
			}
			for range depth {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			zeroed := make(chan error, 1)
			r := &initiator.IO{Op: initiator.OpWriteZeroes, Off: 1 << 20, Len: 1 << 20, Done: func(r *initiator.IO) { zeroed <- r.Err }}
			if err := c.Submit(r); err != nil {
				t.Fatal(err)
			}
			if err := <-zeroed; err != nil {
				t.Fatal(err)
			}
			clear(want[1<<20 : 2<<20])
			if err := c.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1<<20)
			for at := int64(0); at < size; at += int64(len(got)) {
				if _, err := c.ReadAt(ctx, got, at); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want[at:at+int64(len(got))]) {
					t.Fatalf("other data than was written in the MiB at %d", at)
				}
			}
			for i, name := range p.Files {
				if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, want) {
					t.Errorf("the file of node %c differs from what was written (%v)", 'A'+i, err)
				}
			}
		})
	}
}

// With TLS, B serves no client without it.
func TestTLSIsUsed(t *testing.T) {
	p, _ := start(t, Options{TLS: true})
	address := ""
	for l := range strings.Lines(p.Flags) {
		if rest, ok := strings.CutPrefix(l, "B: "); ok {
			_, port, _ := strings.Cut(rest, "addr.port=")
			port, _, _ = strings.Cut(port, ",")
			address = net.JoinHostPort("127.0.0.1", port)
		}
	}
	if _, err := nbd.Dial(bounded(t), "tcp", address, p.Export); !errors.Is(err, nbd.ErrRefused) {
		t.Errorf("B without TLS: error %v, want %v", err, nbd.ErrRefused)
	}
}

// What the package says of a pair whose B has died.
func TestPartnerDies(t *testing.T) {
	p, c := start(t, Options{})
	ctx := bounded(t)
	buf := bytes.Repeat([]byte{7}, 4096)
	if _, err := c.WriteAt(ctx, buf, 0); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PIDs[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteAt(ctx, buf, 4096); !errors.Is(err, syscall.EIO) {
		t.Errorf("write: error %v, want EIO", err)
	}
	got := make([]byte, 4096)
	if _, err := c.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, buf) {
		t.Errorf("read: %v, or other data than was written", err)
	}
}

// command is the name of a process.
func command(pid int) (string, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return "", err
	}
	return p.Comm()
}

func TestCloseEndsTheProcesses(t *testing.T) {
	p, c := start(t, Options{})
	for _, pid := range p.PIDs {
		if name, err := command(pid); err != nil || !strings.HasPrefix(Program, name) { // cut to 15 bytes
			t.Errorf("process %d is %q (%v)", pid, name, err)
		}
	}
	for _, word := range []string{"version", "cache.direct=off", "quorum", "fifo", "\nA: ", "\nB: "} {
		if !strings.Contains(p.Flags, word) {
			t.Errorf("the flags for the report lack %q: %s", word, p.Flags)
		}
	}
	if _, err := nbd.Dial(bounded(t), "tcp", p.Address, "another"); !errors.Is(err, nbd.ErrRefused) {
		t.Errorf("an export that there is not: error %v, want %v", err, nbd.ErrRefused)
	}
	if err := errors.Join(c.Close(bounded(t)), p.Close()); err != nil {
		t.Error(err)
	}
	for _, pid := range p.PIDs {
		if name, err := command(pid); err == nil && strings.HasPrefix(Program, name) {
			t.Errorf("process %d remains", pid)
		}
	}
	if _, err := nbd.Dial(bounded(t), "tcp", p.Address, p.Export); err == nil {
		t.Error("a closed pair serves")
	}
}

func TestNodeDoesNotStart(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip("no pair here: ", err)
	}
	p := &Pair{logs: [2]string{filepath.Join(t.TempDir(), "a.log")}}
	err := p.launch(bounded(t), 0, "127.0.0.1:1", true, []string{"--nonsense"})
	for _, part := range []string{"it ended", "--nonsense"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v lacks %q", err, part)
		}
	}
	_ = p.Close()
}

func TestStartRefuses(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	if _, err := Start(t.Context(), a, b, 1000, Options{}); err == nil || !strings.Contains(err.Error(), "size") {
		t.Errorf("size: %v", err)
	}
	if _, err := Start(t.Context(), a, a, size, Options{}); err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("one folder: %v", err)
	}
	if err := Available(); err != nil {
		t.Skip("no pair here: ", err)
	}
	if err := os.WriteFile(filepath.Join(b, imageName), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), a, b, size, Options{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(b, imageName)); err != nil || !slices.Equal(got, []byte("precious")) {
		t.Errorf("it has %q (%v)", got, err)
	}
}
