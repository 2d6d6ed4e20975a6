package node

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// task is a kind of work that a stop waits for. Each goroutine of a node is of one, so that a stop
// that does not end says what it waits for.
type task uint8

const (
	taskServe     task = iota // a portal, the control API, the metrics
	taskTick                  // the loops of the pair, the link and the arbiter
	taskWatch                 // loops that look at the node itself now and then
	taskPropose               // changes of the metadata
	taskLog                   // entries of the log
	taskState                 // the epoch, or the node's own state
	taskCommand               // a command of a host
	taskFlush                 // a flush
	taskApply                 // work for the peer
	taskBits                  // write-intent bits
	taskResync                // a resync at its source
	taskHeal                  // damaged blocks
	taskScrub                 // a scrub
	taskCopy                  // the copy of a LUN in the background
	taskMove                  // extents
	taskTiers                 // heat and speed of members
	taskChecksums             // checksums of what was written without them
	taskHold                  // a hold of a group
	taskProbe                 // a probe of the disk
	taskClose                 // a file that nothing names any more
	taskEnd                   // the end of sessions, or of ownership

	taskKinds
)

var taskNames = [taskKinds]string{
	taskServe: "serving", taskTick: "keeping the pair", taskWatch: "watching the node", taskPropose: "changing metadata",
	taskLog: "writing the log", taskState: "saving the epoch or the state", taskCommand: "executing commands",
	taskFlush: "flushing", taskApply: "applying for the peer", taskBits: "writing write-intent bits", taskResync: "copying to the peer",
	taskHeal: "healing blocks", taskScrub: "scrubbing", taskCopy: "copying LUNs", taskMove: "moving extents",
	taskTiers: "measuring tiers", taskChecksums: "making checksums", taskHold: "holding a group", taskProbe: "probing a disk",
	taskClose: "closing files", taskEnd: "ending sessions",
}

func (t task) String() string { return taskNames[t] }

// tasks are the goroutines of a node. Nothing of a node outlives Wait.
type tasks struct {
	wg sync.WaitGroup
	by [taskKinds]atomic.Int32
}

// Go runs f on a goroutine of its own.
func (t *tasks) Go(kind task, f func()) {
	t.begin(kind)
	go func() {
		defer t.end(kind)
		f()
	}()
}

func (t *tasks) begin(kind task) {
	t.wg.Add(1)
	t.by[kind].Add(1)
}

func (t *tasks) end(kind task) {
	t.by[kind].Add(-1)
	t.wg.Done()
}

// Wait returns when all of them have ended.

func (t *tasks) Wait() { t.wg.Wait() }

// String names the tasks that have not ended.
func (t *tasks) String() string {
	var parts []string
	for k := range taskKinds {
		if c := t.by[k].Load(); c > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c, k))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
