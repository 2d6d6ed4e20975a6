package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// lazyCopies says whether copies are marked and copied in the background: not as long as the other
// node is of a release that copies them when they are prepared.
func (n *Node) lazyCopies() (bool, error) {
	switch v := n.View(); {
	case !v.Record.Both() && !v.Linked:
		return true, nil
	case !v.Linked:
		return false, fmt.Errorf("the other node is not connected: %w", control.ErrUnavailable)
	}
	return n.linkKnows(featureCopies)
}

// makeCopy makes a snapshot or a clone: files first, then, with the source's changes held, the
// instant, and its entry in the log; and it waits until all is copied. Repeated after any
// end of it, it continues where it was.
func (n *Node) makeCopy(ctx context.Context, prepare *meta.Entry, uuid, source string, still bool) error {
	if !still {
		if err := n.awaitOther(ctx, uuid, source); err != nil {
			return err
		}
	}
	out, err := n.propose(ctx, prepare)
	if errors.Is(err, meta.ErrUnfinished) {
		if _, err = n.propose(ctx, &meta.Entry{Abort: &meta.Object{UUID: uuid}}); err == nil {
			out, err = n.propose(ctx, prepare)
		}
	}
	c, there := n.copyByID(uuid)
	if err != nil {
		if there && ctx.Err() == nil && !errors.Is(err, control.ErrUnavailable) && !errors.Is(err, meta.ErrExists) {
			n.takeBackCopy(ctx, c)
		}
		return err
	}
	if !there {
		return fmt.Errorf("copy %s was deleted: %w", uuid, control.ErrUnavailable)
	}
	if !out.Noop {
		if err := n.markCopy(ctx, c, source); err != nil {
			return err
		}
	}
	return n.awaitCopy(ctx, c)
}

// markCopy is the instant.
func (n *Node) markCopy(ctx context.Context, c meta.Copy, source string) error {
	mark := &meta.Entry{Mark: &meta.Object{UUID: c.UUID, Born: c.Born}}
	var err error
	if c.Still {
		_, err = n.propose(ctx, mark)
	} else {
		err = n.markHeld(ctx, c, source, mark)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, control.ErrUnavailable) {
		n.takeBackCopy(ctx, c)
	}
	return err
}

// markHeld has the changes of the source wait until both nodes have begun. What is dirty is flushed
// before, while they continue: what comes afterwards is durable sooner where little else is on its
// way to the disk.
func (n *Node) markHeld(ctx context.Context, c meta.Copy, source string, mark *meta.Entry) error {
	if err := n.prepareBoth(ctx, prepareModify{UUID: source, Flush: true}); err != nil {
		return err
	}
	id, err := parseID(source)
	if err != nil {
		return err
	}
	x, err := n.toMark(c)
	if err != nil {
		return err
	}
	begun := time.Now()
	q, release, err := n.still(ctx, snapshotHold, func(m *pair.Machine, now int64, q uint64) {
		m.QuiesceChanges(now, q, []pair.LUNID{id}, int64(snapshotHold))
	})
	if err != nil {
		return err
	}
	err = n.beginBoth(ctx, beginCopies{Copies: []*meta.Marked{x}}, func() bool { return n.fixed(q) })
	if err != nil {
		release()
		return err
	}
	outcome := n.proposeAsync(mark.Encode())
	release()
	n.event("copy", fmt.Sprintf("LUN %s is copied to %s; its changes were held for %v", source, c.UUID, time.Since(begun).Round(time.Microsecond)))
	_, err = n.outcome(n.run.ctx, outcome)
	return err
}

// fixed reports whether a quiesce of changes stands, and will until it is released.
func (n *Node) fixed(q uint64) (stands bool) {
	n.do(func(m *pair.Machine, now int64) { stands = m.Fix(now, q) })
	return stands
}

func (n *Node) takeBackCopy(ctx context.Context, c meta.Copy) {
	if _, err := n.propose(ctx, &meta.Entry{Abort: &meta.Object{UUID: c.UUID, Born: c.Born}}); err != nil {
		n.log.Warn("cannot remove a copy that could not be made; repeat the request to resume it", "uuid", c.UUID, "err", err)
	}
}

// copyByID describes a copy that is there.
func (n *Node) copyByID(uuid string) (meta.Copy, bool) {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	return n.md.state.Copy(uuid)
}

// awaitOther waits until no other copy of a LUN is incomplete: a LUN has one at a time, and nothing
// is held meanwhile.
func (n *Node) awaitOther(ctx context.Context, uuid, source string) error {
	return n.awaitCopies(ctx, func(s *meta.State) (bool, error) {
		other := s.CopyingFrom(source)
		return other == nil || other.UUID == uuid, nil
	})
}

// awaitCopy waits until a copy is complete, and both nodes know it: the chair is the last one to
// apply an entry.
func (n *Node) awaitCopy(ctx context.Context, c meta.Copy) error {
	err := n.awaitCopies(ctx, func(s *meta.State) (bool, error) {
		now, ok := s.Copy(c.UUID)
		if !ok || now.Born != c.Born {
			return false, n.whyGone(c)
		}
		return now.Stage == meta.Ready, nil
	})
	if err == nil && !n.leads(n.View()) {
		err = n.awaitEarlier()
	}
	return err
}

// whyGone is why a copy is not there any more that was not complete.
func (n *Node) whyGone(c meta.Copy) error {
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	why, ok := n.copies.reasons[c.UUID]
	switch {
	case !ok || why.Born != c.Born:
		return fmt.Errorf("copy %s was deleted before it was complete: %w", c.UUID, control.ErrUnavailable)
	case why.Full:
		return fmt.Errorf("copy %s was given up: %s: %w", c.UUID, why.Reason, meta.ErrExhausted)
	}
	return fmt.Errorf("copy %s was given up: %s: %w", c.UUID, why.Reason, control.ErrUnavailable)
}

// awaitCopies waits for a state of the metadata. A call that has waited for copyPatience ends with
// how far the copying is: its caller repeats it.
func (n *Node) awaitCopies(ctx context.Context, done func(*meta.State) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, copyPatience)
	defer cancel()
	for {
		next := n.copies.applied.next()
		n.md.mu.Lock()
		ok, err := done(n.md.state)
		n.md.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("%w%s", control.ErrCopying, n.copyProgress())
		case <-n.run.ctx.Done():
			return control.ErrUnavailable
		}
	}
}

// copyPatience is how long a call waits for a copy: less than those wait who call, so that they
// hear how far it is.
const copyPatience = 20 * time.Second

// copyProgress says how far the copies here are.
func (n *Node) copyProgress() (text string) {
	for id, s := range n.copyStandings(n.copying()) {
		if s.Total > 0 && !s.Sealed && s.Failed == "" {
			text += fmt.Sprintf(", %s: %d of %d MiB here", id, s.Done>>20, s.Total>>20)
		}
	}
	return text
}
