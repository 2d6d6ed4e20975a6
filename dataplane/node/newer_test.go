package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// newerEntry is a change that this release does not know.
var newerEntry = []byte(`{"resize_group":{"uuid":"x"}}`)

// A log entry of a newer release ends the membership of a node that does not know it, by name,
// whichever of the two is the chair: the other one continues, and the metadata of the two is never
// different. Restarted, the node is let in again, or refused again.
func TestLogEntryOfANewerRelease(t *testing.T) {
	for _, newer := range []int{0, 1} {
		t.Run("node "+[]string{"a", "b"}[newer]+" is newer", func(t *testing.T) {
			p := newTestPair(t)
			p.cfg[newer].later = true
			p.startBoth()
			id, _ := p.lun(4<<20, "a")
			old := 1 - newer
			before := p.nodes[old].View().LogIndex
			p.nodes[newer].do(func(m *pair.Machine, now int64) { m.Propose(now, newerEntry) })
			p.until("the newer node is alone", func() bool { v := p.nodes[newer].View(); return v.Phase == pair.Alone && v.Serving })
			left := p.nodes[old]
			p.leaves(old, `newer release: json: unknown field "resize_group"`)
			v := left.View()
			if v.Serving || v.LogIndex != before {
				t.Errorf("serving %v at index %d, before %d", v.Serving, v.LogIndex, before)
			}
			if !strings.Contains(v.Reason, fmt.Sprintf("upgrade node %v", left.self)) {
				t.Errorf("it does not say what to do: %s", v.Reason)
			}
			p.start(old) // the state has nothing that it does not know
			p.inSync()
			p.until("both hold the same", func() bool {
				x, y := p.nodes[0].View().LogIndex, p.nodes[1].View().LogIndex
				return x == y && x > before
			})
			if string(p.bytes(0, id)) != string(p.bytes(1, id)) {
				t.Error("the copies differ")
			}
		})
	}
}

func TestMetadataOfANewerPeer(t *testing.T) {
	p := newTestPair(t)
	n, err := New(p.cfg[0])
	if err != nil {
		t.Fatal(err)
	}
	defer n.store.Close()
	_, _, err = n.installState(&pair.Msg{Aux: 3, Meta: []byte(`{"index":3,"luns":{},"snapshots":{},"hosts":{},"tiers":{"g":1}}`)})
	if !errors.Is(err, meta.ErrNewer) || !strings.Contains(err.Error(), `"tiers"`) || !strings.Contains(err.Error(), "metadata of node b") || !strings.HasSuffix(err.Error(), "upgrade node a") {
		t.Errorf("%v", err)
	}
	if n.md.state.Index != 0 {
		t.Error("installed all the same")
	}
}

// A state folder that a newer release has written is refused at the start, unless this release
// knows all that is in it.
func TestStateDirOfANewerRelease(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(1<<20, "a")
	for i := range p.nodes {
		if err := p.stop(i); err != nil {
			t.Fatal(err)
		}
	}
	change := func(f func(tx *store.Tx) error) {
		t.Helper()
		st, err := store.Open(p.cfg[0].StateDir, store.Identity{Cluster: "test", Pair: "p0", Node: "a"}, store.Options{Log: p.cfg[0].Logger})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(st.DB().Update(f), st.Close()); err != nil {
			t.Fatal(err)
		}
	}
	// set adds a field to a value, or takes it out again.
	set := func(bucket, key, field string) func(tx *store.Tx) error {
		return func(tx *store.Tx) error {
			raw, err := tx.Get(bucket, key)
			if err != nil {
				return err
			}
			var v map[string]any
			if err := json.Unmarshal(raw, &v); err != nil {
				return err
			}
			if _, there := v[field]; there {
				delete(v, field)
			} else {
				v[field] = map[string]int{"x": 1}
			}
			return put(tx, bucket, key, v)
		}
	}
	for _, c := range []struct {
		name, says string
		do, undo   func(tx *store.Tx) error
	}{
		{"a field of a LUN", "luns/" + id, set(bucketLUNs, id, "queue"), set(bucketLUNs, id, "queue")},
		{"a field of a host", "queue", set(bucketHosts, testHost, "queue"), set(bucketHosts, testHost, "queue")},
		{"a field of the head", "queue", set(bucketMeta, keyHead, "queue"), set(bucketMeta, keyHead, "queue")},
		{"a field of its own state", "node state", set(bucketState, keyState, "queue"), set(bucketState, keyState, "queue")},
		{"a bucket", `"tiers"`, func(tx *store.Tx) error { return tx.Put("tiers", "g", []byte("{}")) }, func(tx *store.Tx) error { return tx.Drop("tiers") }},
	} {
		change(c.do)
		err := open(p.cfg[0])
		if !errors.Is(err, meta.ErrNewer) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "run the release that wrote") {
			t.Errorf("%s: %v", c.name, err)
		}
		change(c.undo)
		if err := open(p.cfg[0]); err != nil {
			t.Fatalf("%s, taken out again: %v", c.name, err)
		}
	}
}

// A link that has gone since the node looked says nothing of the other node's release: nothing is
// done as with a release before, and nothing is refused for one.
func TestLinkThatHasGoneIsNoReleaseBefore(t *testing.T) {
	p := newTestPair(t).startBoth()
	n := p.nodes[0]
	link := n.peer.linkN.Load()
	n.peer.linkN.Store(link + 1000) // as it is from the moment on at which the next one is expected
	_, lazy := n.lazyCopies()
	pins, groups := n.pinnable("b"), n.groupsKnown()
	n.peer.linkN.Store(link)
	for what, err := range map[string]error{"copies": lazy, "pins": pins, "group snapshots": groups} {
		if !errors.Is(err, control.ErrUnavailable) || errors.Is(err, control.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if ok, err := n.lazyCopies(); err != nil || !ok {
		t.Error(ok, err)
	}
}
