package sim

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// The survivor is the node with the higher epoch, or the one that was a member last, and never one
// whose disk has failed.
func TestSurvivorIsTheOneThatWasAMemberLast(t *testing.T) {
	alone := func(n pair.Node, store string) *pair.Record {
		return &pair.Record{Members: []pair.Member{{Node: n, Store: store}}}
	}
	for _, x := range []struct {
		name string
		set  func(a, b *disk)
		want string
	}{
		{"alike", func(a, b *disk) {}, "a"},
		{"the higher epoch", func(a, b *disk) { b.epoch++ }, "b"},
		{"the member", func(a, b *disk) { a.record, b.record = alone(pair.B, b.id), alone(pair.B, b.id) }, "b"},
		{"a member with another disk", func(a, b *disk) { a.record, b.record = alone(pair.B, "gone"), alone(pair.B, "gone") }, "a"},
		{"a disk that failed", func(a, b *disk) { a.epoch++; a.untrusted = true }, "b"},
		{"both failed", func(a, b *disk) { a.untrusted, b.untrusted = true, true }, ""},
	} {
		w := still()
		x.set(w.nodes[0].disk, w.nodes[1].disk)
		got := ""
		if h := w.survivor(); h != nil {
			got = h.id.String()
		}
		if got != x.want {
			t.Errorf("%s: %q, not %q", x.name, got, x.want)
		}
	}
}

// What an administrator keeps stopped does not start again.
func TestStoppedNodeStaysStopped(t *testing.T) {
	w := still()
	w.admin.stopped = w.nodes[1]
	w.nodes[1].held = true
	if w.nodes[1].boot(); w.nodes[1].m != nil {
		t.Fatal("it has started")
	}
	if w.release(); w.nodes[1].m == nil || w.admin.stopped != nil {
		t.Fatal("it has not started")
	}
}
