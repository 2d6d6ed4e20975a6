package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// manyLUNs has several callers make and map LUNs at the same time, through both nodes.
func (p *testPair) manyLUNs(n int) (ids []string, errs []error) {
	p.t.Helper()
	clients := [2]targetv1.TargetServiceClient{p.client(0), p.client(1)}
	errs = make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		id := uuid.NewString()
		ids = append(ids, id)
		wg.Go(func() {
			c := clients[i%2]
			_, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: fmt.Sprint("many-", i), SizeBytes: mib, PreferredNode: "a"})
			if err == nil {
				_, err = c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost})
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return ids, errs
}

func (p *testPair) index(i int) uint64 {
	n := p.nodes[i]
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	return n.md.state.Index
}

// Callers that are there at the same time share entries of the log, at both nodes alike. If a node
// does not know batches, each caller has entries of its own.
func TestCallersShareEntries(t *testing.T) {
	for _, knows := range []bool{true, false} {
		t.Run(fmt.Sprintf("both know %v", knows), func(t *testing.T) {
			p := newTestPair(t)
			p.cfg[1].earlier = !knows
			p.startBoth()
			before := p.index(0)
			const n = 24
			ids, errs := p.manyLUNs(n)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			entries := p.index(0) - before // three for each LUN, if none is shared
			t.Logf("%d entries for %d LUNs", entries, n)
			if shared := entries < 2*n; shared != knows {
				t.Errorf("%d entries for %d LUNs", entries, n)
			}
			p.until("both have the entries", func() bool { return p.index(1) == p.index(0) })
			for i := range p.nodes {
				for _, id := range ids {
					p.nodes[i].md.mu.Lock()
					l := p.nodes[i].md.state.LUNs[id]
					p.nodes[i].md.mu.Unlock()
					if l == nil || l.Stage != meta.Ready || len(l.Maps) != 1 {
						t.Errorf("node %d, LUN %s: %+v", i, id, l)
					}
				}
			}
			p.bothAfterRestart(ids)
		})
	}
}

// bothAfterRestart starts both nodes again, which have to have every LUN.
func (p *testPair) bothAfterRestart(ids []string) {
	p.t.Helper()
	for i := range p.nodes {
		if err := p.stop(i); err != nil {
			p.t.Fatal(err)
		}
	}
	p.startBoth()
	for i := range p.nodes {
		got, err := p.client(i).ListLUNs(p.ctx, &targetv1.ListLUNsRequest{})
		if err != nil {
			p.t.Fatal(err)
		}
		if len(got.Luns) < len(ids) {
			p.t.Errorf("node %d has %d LUNs", i, len(got.Luns))
		}
	}
}

// A node cannot make the files of one LUN of a batch, and perhaps the other node not those of
// another one: their callers are told, these LUNs go, and the others are there.
func TestFailureOfAPart(t *testing.T) {
	for name, bad := range map[string][]int{"at node a": {0}, "at node b": {1}, "at both": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t)
			var mu sync.Mutex
			broken := map[string]bool{} // LUNs whose files cannot be made
			for _, i := range bad {
				var seen []string
				own := "" // the one that this node cannot make
				p.cfg[i].Faults = func(op, path string, _, _ int64) error {
					lun := strings.SplitN(filepath.Base(path), ".", 2)[0]
					if op != store.FaultCreate || uuid.Validate(lun) != nil {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					if !slices.Contains(seen, lun) {
						if seen = append(seen, lun); len(seen) > 4 && own == "" && !broken[lun] { // the first ones are alone
							own, broken[lun] = lun, true
						}
					}
					if own == lun {
						return syscall.ENOSPC
					}
					return nil
				}
			}
			p.startBoth()
			ids, errs := p.manyLUNs(16)
			mu.Lock()
			failed := maps.Clone(broken)
			mu.Unlock()
			for i, id := range ids {
				if failed[id] != (errs[i] != nil) {
					t.Errorf("LUN %s: %v; those that fail are %v", id, errs[i], failed)
				}
			}
			if len(failed) != len(bad) {
				t.Errorf("%v failed: %v", failed, errs)
			}
			p.until("both have the entries", func() bool { return p.index(1) == p.index(0) })
			for i := range p.nodes {
				p.nodes[i].md.mu.Lock()
				if got := len(p.nodes[i].md.state.LUNs); got != len(ids)-len(bad) {
					t.Errorf("node %d has %d LUNs", i, got)
				}
				p.nodes[i].md.mu.Unlock()
			}
		})
	}
}

// The other node's disk hangs while the files of a batch are made: that node is late, as it is with
// one LUN, and the callers have their LUNs without it.
func TestDiskThatHangsDuringABatch(t *testing.T) {
	p := newTestPair(t)
	var mu sync.Mutex
	seen := map[string]bool{}
	hangs := make(chan struct{})
	release := sync.OnceFunc(func() { close(hangs) })
	t.Cleanup(release) // before the nodes are stopped
	p.cfg[1].Faults = func(op, path string, _, _ int64) error {
		lun := strings.SplitN(filepath.Base(path), ".", 2)[0]
		if op != store.FaultCreate || uuid.Validate(lun) != nil {
			return nil
		}
		mu.Lock()
		seen[lun] = true
		hang := len(seen) > 4 // the first ones are alone
		mu.Unlock()
		if hang {
			<-hangs
		}
		return nil
	}
	p.startBoth()
	c := p.client(0)
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: fmt.Sprint("hung-", i), SizeBytes: mib})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if v := p.nodes[0].View(); v.Phase != pair.Alone {
		t.Errorf("node a is %v", v.Phase)
	}
	release()
	p.leaves(1, "does not finish its I/O")
}

// A batch has one entry for each LUN, in the order in which they came; what waits longer than its
// caller is proposed nevertheless.
func TestWhatABatchTakes(t *testing.T) {
	entry := func(id string) *proposedEntry {
		return &proposedEntry{entry: &meta.Entry{MapHost: &meta.MapHost{UUID: id}}, raw: make([]byte, maxBatchBytes/3)}
	}
	var b batcher
	for _, id := range []string{"1", "1", "2", "3", "4"} {
		b.waiting = append(b.waiting, entry(id))
	}
	b.busy = true
	var got []string
	for batch := b.take(); len(batch) > 0; batch = b.take() {
		for _, x := range batch {
			got = append(got, x.entry.MapHost.UUID)
		}
		got = append(got, ";")
	}
	if s := strings.Join(got, ""); s != "123;14;" || b.busy {
		t.Errorf("%s, busy %v", s, b.busy)
	}
}

// A caller that gives up leaves its entry in the log; the others and the node's stop are not held
// up.
func TestCallerOfABatchGivesUp(t *testing.T) {
	p := newTestPair(t).startBoth()
	n := p.nodes[0]
	n.md.mu.Lock() // nothing is applied here
	locked := true
	unlock := func() {
		if locked {
			n.md.mu.Unlock()
			locked = false
		}
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(p.ctx, 100*time.Millisecond)
	defer cancel()
	created := func(ctx context.Context, id string) error {
		_, err := n.propose(ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: meta.LUN{UUID: id, Name: id, Size: mib, Created: meta.Now()}}})
		return err
	}
	ids := []string{uuid.NewString(), uuid.NewString(), uuid.NewString()}
	for _, id := range ids {
		if err := created(ctx, id); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
	unlock()
	for _, id := range ids {
		if err := created(p.ctx, id); err != nil {
			t.Error(err)
		}
	}
}
