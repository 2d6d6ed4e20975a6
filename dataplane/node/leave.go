package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A node that has stopped serving for the rest of this life ends its process, so that its
// supervisor starts it again: the next life reads the record, is copied to and serves. See
// docs/decisions/0037-a-life-that-is-over.md.

// ErrLeft is what Run returns then; its text says what is wrong and what to do.
var ErrLeft = errors.New("this node has stopped serving: the process ends, and must be started again")

// Bounds of the end.
const (
	overEvery = 20 * time.Millisecond // between two looks at whether this life is over
	endTime   = 5 * time.Second       // from then on until Run returns, whatever hangs
)

// watchOver waits until this life is over and returns why, "" when ctx has ended before. It has a
// clock of its own and calls nothing that touches the disk: a disk that hangs may hold everything
// else up.
func (n *Node) watchOver(ctx context.Context) string {
	t := time.NewTicker(overEvery)
	defer t.Stop()
	for {
		if why := n.View().Over; why != "" && ctx.Err() == nil {
			return why
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return ""
		}
	}
}

// Run serves until ctx ends, then hands over, logs initiators out and closes the store. It returns
// nil after an orderly stop, and ErrLeft when this life was over before (pair.Machine.Over). Either
// end is bounded, although work may hang in the store, which only the end of the process ends: Run
// returns within endTime after this life was over, and within handOverTime + endTime after ctx has
// ended, with ErrStop if the stop has not ended by then.
func (n *Node) Run(ctx context.Context) error {
	n.run.over = make(chan string, 1)
	done := make(chan error, 1)
	go func() { done <- n.serveUntil(ctx) }()
	bound, why := endTime, ""
	select {
	case err := <-done:
		return err
	case why = <-n.run.over:
	case <-ctx.Done():
		bound += handOverTime
	}
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
	}
	select {
	case why = <-n.run.over: // it was over just before it was asked to stop
	default:
	}
	what := n.unended()
	if why != "" {
		n.log.Error("the store does not finish its I/O; ending the process without waiting for it", "after", bound, "while", what)
		return left(why)
	}
	n.log.Error("the orderly stop did not finish in time; ending the process", "after", bound, "while", what)
	return fmt.Errorf("%w, after %v, while %s", ErrStop, bound, what)
}

func left(why string) error { return fmt.Errorf("%w: %s", ErrLeft, why) }

// because adds what failed in the store to the reason of the end, which may have come from who
// needed it and not from the store.
func (n *Node) because(why string) string {
	if err := n.store.Failed(); err != nil && !strings.Contains(why, err.Error()) {
		return why + ": " + err.Error()
	}
	return why
}

// leave sends the event, then ends the sessions: hosts log out and continue over the other path.
// Those that do not are cut off, and so is the link. It does not wait for what hangs in the store.
func (n *Node) leave(why string) error {
	why = n.because(why)
	n.run.over <- why
	n.log.Error("this node has stopped serving; the process ends, and must be started again", "why", why)
	n.event("end", why)
	n.ends(stepLogOut)
	n.logOut()
	n.run.cancel() // and with it the link
	return left(why)
}

// logOut ends the sessions: hosts are asked to log out, and cut off if they do not. It does not
// wait for commands that wait for the store, for the peer, or for an entry of the log that does not
// come while neither the peer nor the arbiter can be reached: it returns whether all sessions have
// ended, and those that have not end with their commands.
func (n *Node) logOut() bool {
	ctx, cancel := context.WithTimeout(context.Background(), logoutTime)
	defer cancel()
	out := make(chan struct{})
	n.run.tasks.Go(taskEnd, func() {
		defer close(out)
		if err := n.iscsi.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			n.log.Warn("iSCSI shutdown", "err", err)
		}
	})
	select {
	case <-out:
		return true
	case <-ctx.Done():
		return false
	}
}

// finished tells that this node's life is over, or will be at once.
func finished(v *pair.View) bool { return v.Leaving || v.Over != "" }
