package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// The orderly stop: hand over, log initiators out, end what they had asked for, close the files.
// Each step is bounded, and so is all of it: see docs/decisions/0037-a-life-that-is-over.md.

// ErrStop is what Run returns when an orderly stop has not ended within its bound; its text says
// what it waited for.
var ErrStop = errors.New("the orderly stop did not finish in time")

// Limits of an orderly stop. Run returns within handOverTime + endTime after it was asked to stop,
// whatever hangs.
const (
	handOverTime = 5 * time.Second
	logoutTime   = 3 * time.Second
)

// Steps of the end, for the log.
var (
	stepHandOver = "handing over"
	stepLogOut   = "logging initiators out"
	stepWork     = "finishing the work in progress"
	stepFiles    = "closing the files and the store"
)

// ends notes which step of the end begins.
func (n *Node) ends(step string) { n.run.step.Store(&step) }

// handOver moves every LUN to the peer, lets it exclude this node by consent, and logs initiators
// out.
func (n *Node) handOver() {
	n.run.stopping.Store(true)
	n.ends(stepHandOver)
	n.log.Info("stopping: handing over to the peer")
	ctx, cancel := context.WithTimeout(context.Background(), handOverTime)
	defer cancel()
	if v := n.View(); v.Phase == pair.Paired && v.Agreed {
		if err := n.giveAway(ctx); err != nil {
			n.log.Warn("cannot hand over ownership; the peer takes it when it excludes this node", "err", err)
		}
		n.stepDown()
		gone := func(v pair.View) bool {
			return v.Phase == pair.Outside || v.Phase == pair.Fenced || v.Peer.Leaving // both stop: neither excludes the other
		}
		if err := n.waitView(ctx, gone); err != nil {
			n.log.Warn("the peer did not confirm the exclusion in time; it serves after the lease expires", "err", err)
		}
	}
	n.ends(stepLogOut)
	if !n.logOut() {
		// The sessions are cut, and wait for commands that the machine holds. A node that hands
		// over has stepped down before. One that was about to exclude its peer has not, nor has a
		// lone one: what their commands wait for (the peer, the lease, the outcome of the
		// exclusion) comes with a tick, over the link or from the arbiter, and all three end now.
		// So this node steps down, whatever its phase: what was not sent to the peer ends here,
		// what was sent ends with the link, and what is at the store ends when the store is done
		// with it. No command is answered GOOD from here on (R1).
		n.log.Warn("initiator sessions wait for commands in progress; ending these commands without an answer", "commands", waiting(n.Waiting()))
		n.stepDown()
	}
	n.log.Info("stopped serving")
}

func (n *Node) stepDown() {
	n.do(func(m *pair.Machine, now int64) { m.StepDown(now, "orderly stop") })
}

// giveAway moves every LUN to the peer. A transfer waits for its entry in the log for as long as it
// takes, for until then this node does not own the LUNs (R10): for ever, if neither the peer nor
// the arbiter can be reached. What is over then does not wait any longer.
func (n *Node) giveAway(ctx context.Context) error {
	end := make(chan error, 1)
	n.run.tasks.Go(taskEnd, func() {
		_, _, err := n.evacuate(ctx, n.self.Peer())
		end <- err
	})
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Waiting counts the commands and changes at this node by what they wait for; what waits for
// nothing is not listed.
func (n *Node) Waiting() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.Waiting()
}

// waiting is that as text.
func waiting(by map[string]int) string {
	if len(by) == 0 {
		return "none"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%d for %s", by[k], k))
	}
	return strings.Join(parts, ", ")
}

// unended says what a stop, or the end of a life, waits for and did not get.
func (n *Node) unended() string {
	step := "starting"
	if s := n.run.step.Load(); s != nil {
		step = *s
	}
	sessions := 0
	for _, s := range n.iscsi.Sessions() {
		if !s.Discovery {
			sessions++
		}
	}
	return fmt.Sprintf("%s: %d sessions have not ended; commands waiting: %s; tasks that have not ended: %s", step, sessions, waiting(n.Waiting()), &n.run.tasks)
}
