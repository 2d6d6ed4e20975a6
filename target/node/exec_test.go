package node

import (
	"testing"

	"github.com/gemel-storage/gemel/target/pair"
	"github.com/gemel-storage/gemel/target/scsi"
)

// An op goes back to its pool with its command's end. The next command that gets it may end in the same list of actions, and has to be told.
func TestOpOfAnotherCommandInTheSameList(t *testing.T) {
	o, between := &pair.Op{S: new(scsi.Op)}, &pair.Op{S: new(scsi.Op)}
	ended := 0
	between.S.Done = func(*scsi.Op) { o.S = &scsi.Op{Done: func(*scsi.Op) { ended++ }} } // another goroutine has taken it
	a := &actions{list: []pair.Action{{Kind: pair.ActReply, Op: o}, {Kind: pair.ActReply, Op: between}, {Kind: pair.ActReply, Op: o}}}
	if !new(Node).run(a, o) || ended != 1 {
		t.Errorf("the second command was told of its end %d times", ended)
	}
}
