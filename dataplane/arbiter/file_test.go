package arbiter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

func record(epoch uint64) pair.Record {
	return pair.Record{Cluster: "c", Pair: "p", Epoch: epoch, Members: []pair.Member{{Store: "s"}}}
}

func TestFileCompareAndSwap(t *testing.T) {
	ctx := context.Background()
	f, err := NewFile(filepath.Join(t.TempDir(), "rec"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Get(ctx); !errors.Is(err, ErrNotFound) {
		t.Fatalf("empty: %v", err)
	}
	if _, err := f.CompareAndSwap(ctx, "7", record(1)); !errors.Is(err, ErrConflict) {
		t.Fatalf("a version of nothing: %v", err)
	}
	v1, err := f.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.CompareAndSwap(ctx, "", record(2)); !errors.Is(err, ErrConflict) {
		t.Fatalf("a second founding: %v", err)
	}
	// The same content again is a successor: a late write under the old version cannot land any
	// more (R2).
	v2, err := f.CompareAndSwap(ctx, v1, record(1))
	if err != nil || v2 == v1 {
		t.Fatalf("no-op successor: %q %v", v2, err)
	}
	if _, err := f.CompareAndSwap(ctx, v1, record(2)); !errors.Is(err, ErrConflict) {
		t.Fatalf("late write: %v", err)
	}
	got, v, err := f.Get(ctx)
	if want := record(1); err != nil || v != v2 || !got.Equal(&want) {
		t.Fatalf("%+v %q %v", got, v, err)
	}
}

func TestFileOneWinner(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "rec")
	first, err := NewFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := first.CompareAndSwap(ctx, "", record(1))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 8 {
		wg.Go(func() {
			f, _ := NewFile(path)
			_, err := f.CompareAndSwap(ctx, v, record(uint64(10+i)))
			if err == nil {
				mu.Lock()
				won++
				mu.Unlock()
			} else if !errors.Is(err, ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Fatalf("%d winners", won)
	}
}

func TestFileDamageIsNotAbsence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rec")
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := NewFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Get(context.Background()); err == nil || errors.Is(err, ErrNotFound) {
		t.Fatalf("a damaged record must not look like none: %v", err)
	}
	if _, err := NewFile(filepath.Join(t.TempDir(), "no", "rec")); err == nil {
		t.Fatal("a missing folder must be named")
	}
}
