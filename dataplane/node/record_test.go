package node

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A lone member reads the record regularly, and one that was given to the other node over its head
// ends its service (R2).
func TestLoneMemberFindsThatTheOtherWasForced(t *testing.T) {
	p := newTestPair(t).startBoth()
	p.end(1)
	n := p.nodes[0]
	p.until("node a is alone and serves", func() bool { v := n.View(); return v.Phase == pair.Alone && v.Serving })
	rec, version, err := n.arb.Get(p.ctx)
	if err != nil {
		t.Fatal(err)
	}
	rec.Epoch, rec.Generation = rec.Epoch+1, rec.Generation+1
	rec.Members = []pair.Member{{Node: pair.B, Store: "its store", Incarnation: pair.Incarnation{Boot: "its boot", Nonce: 1}}}
	began := time.Now()
	if _, err := n.arb.CompareAndSwap(p.ctx, version, rec); err != nil {
		t.Fatal(err)
	}
	p.until("node a fences itself, and can be forced", func() bool { v := n.View(); return v.Phase == pair.Fenced && v.ForceEpoch != 0 })
	t.Logf("after %v", time.Since(began).Round(time.Millisecond))
	if v := n.View(); v.Serving || !strings.Contains(v.Reason, "on this node's store only") || v.ForceEpoch == 0 {
		t.Fatalf("%+v", v)
	}
}

// The lock by which a member holds its store is on record with the epoch, so that its next life can
// say whether it holds the same.
func TestLockIsOnRecord(t *testing.T) {
	p := newTestPair(t).startBoth()
	for _, n := range p.nodes {
		want, err := n.store.LockID()
		if err != nil {
			t.Fatal(err)
		}
		// A node serves before the number of its counterpart is saved.
		p.until(fmt.Sprintf("node %v has the lock %s and its counterpart on record", n.self, want), func() bool {
			l, err := n.loadState()
			return err == nil && l.Pair.Lock == want && l.Pair.Check.Peer != ""
		})
	}
	says := func(want pair.LockState) {
		t.Helper()
		p.until("node b says that its lock is "+string(want), func() bool { return p.nodes[0].View().Peer.Lock == want })
		p.inSync()
	}
	p.end(1)
	p.start(1)
	says(pair.LockSame)
	p.end(1)
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(p.cfg[1].StateDir)); err != nil {
		t.Fatal(err)
	}
	p.cfg[1].StateDir = folder
	p.start(1)
	p.until("node b has met node a", func() bool { return p.nodes[1].View().Phase != pair.Starting && p.nodes[0].View().Linked })
	p.inSync()
	if l, err := p.nodes[1].loadState(); err != nil {
		t.Fatal(err)
	} else if own, err := p.nodes[1].store.LockID(); err != nil || l.Pair.Lock != own {
		t.Fatalf("%+v, %v", l.Pair, err)
	}
}

// Work on an entry may take longer than Dm: no node is excluded as long as it continues.
func TestEntryThatTakesLong(t *testing.T) {
	p := newTestPair(t).startBoth()
	epoch := p.nodes[0].View().Record.Epoch
	held := p.nodes[1]
	held.md.mu.Lock() // as a snapshot does that copies a large LUN
	done := make(chan error, 1)
	go func() {
		id := uuid.NewString()
		_, err := p.client(0).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: mib, PreferredNode: "a"})
		done <- err
	}()
	p.until("the entry has been at work for longer than Dm", func() bool { return p.nodes[0].View().Peer.Moved > 6 })
	held.md.mu.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.inSync()
	if v := p.nodes[0].View(); v.Record.Epoch != epoch {
		t.Fatalf("epoch %d, before %d", v.Record.Epoch, epoch)
	}
}
