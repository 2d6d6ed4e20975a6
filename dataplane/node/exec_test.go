package node

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// An op goes back to its pool with its command's end. The next command that gets it may end in the
// same list of actions, and its host has to hear of it: whether the first command ended in that
// list too, or on another goroutine.
func TestOpOfAnotherCommandInTheSameList(t *testing.T) {
	for name, elsewhere := range map[string]bool{"the first one ends here": false, "the first one ends elsewhere": true} {
		t.Run(name, func(t *testing.T) {
			n := new(Node)
			o, between := &pair.Op{Cmd: new(scsi.Op)}, &pair.Op{Cmd: new(scsi.Op)}
			cur := current{o, o.Uses()}
			a := &actions{list: []pair.Action{{Kind: pair.ActReply, Op: o}, {Kind: pair.ActReply, Op: between}, {Kind: pair.ActReply, Op: o}}}
			if elsewhere {
				a.list = a.list[1:]
			}
			ended := 0
			between.Cmd.Done = func(*scsi.Op) { // another goroutine has taken it out of the pool
				n.io.ops.pool.New = func() any { return o }
				for n.io.ops.get() != o {
				}
				if elsewhere {
					o.Reset()
				}
				o.Cmd = &scsi.Op{Done: func(*scsi.Op) { ended++ }}
			}
			if n.perform(a, cur) == elsewhere || ended != 1 {
				t.Errorf("the host of the second command heard of its end %d times", ended)
			}
		})
	}
}
