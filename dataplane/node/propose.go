package node

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

type proposalEnd struct {
	res scsi.Result
	out meta.Outcome
}

// propose puts an entry into the log and waits for its outcome on every member.
func (n *Node) propose(ctx context.Context, e *meta.Entry) (meta.Outcome, error) {
	raw := e.Encode()
	if err := n.affordable(e, raw); err != nil {
		return meta.Outcome{}, err
	}
	if e.Batchable() && n.batches() {
		return n.outcome(ctx, n.batch.add(n, e, raw))
	}
	return n.outcome(ctx, n.proposeAsync(raw))
}

// outcome waits for that of an entry.
func (n *Node) outcome(ctx context.Context, c <-chan proposalEnd) (meta.Outcome, error) {
	select {
	case end := <-c:
		switch {
		case end.res == scsi.Unavailable:
			return end.out, control.ErrUnavailable
		case end.out.Code != "":
			return end.out, end.out.Err()
		}
		return end.out, nil
	case <-ctx.Done():
		return meta.Outcome{}, fmt.Errorf("the change is not confirmed yet: repeat the request, which is safe: %w", ctx.Err())
	}
}

func (n *Node) proposeAsync(raw []byte) <-chan proposalEnd {
	c := make(chan proposalEnd, 1)
	// The number is known only inside the machine; ActProposed may be carried out by another
	// goroutine, so the channel is registered before the lock is given up.
	n.do(func(m *pair.Machine, now int64) {
		id := m.Propose(now, raw)
		n.waits.proposals.add(id, c)
	})
	return c
}

func (n *Node) proposalEnded(x pair.Action) {
	c := n.waits.proposals.take(x.ID)
	if c == nil {
		return
	}
	end := proposalEnd{res: x.Result}
	if len(x.Meta) > 0 {
		if err := json.Unmarshal(x.Meta, &end.out); err != nil {
			end.out = meta.Outcome{Code: "internal", Error: "outcome: " + err.Error()}
		}
	}
	c <- end
}

// Propose implements scsi.Cluster.
func (n *Node) Propose(u *scsi.Unit, nexus scsi.NexusID, change scsi.Change, done func(scsi.Outcome)) {
	if n.isBench(u) {
		n.io.bench.Load().propose(nexus, change, done)
		return
	}
	e := &meta.Entry{}
	if change.PROut != nil {
		e.PR = &meta.PR{UUID: u.UUID(), Nexus: nexus, Req: *change.PROut}
	} else {
		e.Mode = &meta.Mode{UUID: u.UUID(), Nexus: nexus, Req: *change.ModeSelect}
	}
	raw := e.Encode()
	if err := n.affordable(e, raw); err != nil {
		n.log.Warn("refusing a change of reservations", "initiator", nexus.Initiator, "err", err)
		done(scsi.NoRegistrationResources())
		return
	}
	c := n.proposeAsync(raw)
	n.run.tasks.Go(taskPropose, func() {
		select {
		case end := <-c:
			done(end.outcome(func() error {
				if !endsCommands(change) {
					return nil
				}
				return n.awaitEarlier()
			}))
		case <-n.run.ctx.Done():
			done(outcomeUnknown)
		}
	})
}

// outcomeUnknown ends a command whose change may be in the log, or is, without this node being able
// to tell the rest: ABORTED COMMAND. BUSY would say that the command was not accepted (SAM-5
// §5.3.1).
var outcomeUnknown = scsi.Outcome{Status: scsi.StatusCheckCondition, Sense: scsi.FixedSense(scsi.AbortedCommand, 0, 0)}

// outcome is what the command is answered whose change was proposed; rest is what has to succeed
// beside the entry.
func (end proposalEnd) outcome(rest func() error) scsi.Outcome {
	if end.res != scsi.OK || end.out.SCSI == nil || rest() != nil {
		return outcomeUnknown
	}
	return *end.out.SCSI
}

func endsCommands(c scsi.Change) bool { return c.PROut != nil && c.PROut.Action == scsi.PRPreemptAbort }

// awaitEarlier waits until every change that either node had handed to the log before has been
// applied, by an entry that changes nothing. An entry that ends commands does not wait for those
// that wait for an entry themselves (scsi.Server, abort): the node that proposed it does, before
// the host gets the answer that they have ended (R11c). A node's proposals reach the chair before
// its acknowledgement of the entry, and a command that was killed before it was handed over never
// is.
func (n *Node) awaitEarlier() error {
	_, err := n.propose(n.run.ctx, &meta.Entry{Abort: &meta.Object{}})
	return err
}

// Reset implements scsi.Cluster.
func (n *Node) Reset(u *scsi.Unit, scope scsi.ResetScope, by scsi.NexusID, done func(bool)) {
	if n.isBench(u) {
		n.scsi.AbortUnitFor(u, by, func() { done(true) })
		return
	}
	r := &meta.Reset{Scope: scope, By: by}
	if u != nil {
		r.UUID = u.UUID()
	}
	c := n.proposeAsync((&meta.Entry{Reset: r}).Encode())
	n.run.tasks.Go(taskPropose, func() {
		select {
		case end := <-c:
			done(end.res == scsi.OK && n.awaitEarlier() == nil)
		case <-n.run.ctx.Done():
			done(false)
		}
	})
}

// takeAll makes this node the owner of every LUN after it became alone.
func (n *Node) takeAll() {
	if _, err := n.propose(n.run.ctx, &meta.Entry{SetOwner: &meta.SetOwner{All: true, To: n.self.String()}}); err != nil && n.run.ctx.Err() == nil {
		n.log.Warn("cannot take ownership of all LUNs", "err", err)
	}
}
