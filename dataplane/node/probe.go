package node

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/arbiter"
)

// probeEvery is how often a node looks whether the arbiter answers. While both nodes serve, neither
// needs it, and neither would notice that a failure of a node would now mean waiting.
const probeEvery = 10 * time.Second

// probed is what the last look gave.
type probed struct {
	at    time.Time
	since time.Time // first failure of the present row
	err   error
}

// probeLoop checks whether the arbiter answers. Only the machine uses what the record says.
func (n *Node) probeLoop() {
	t := time.NewTicker(probeEvery)
	defer t.Stop()
	for {
		ctx, cancel := context.WithTimeout(n.run.ctx, arbiterTimeout)
		_, _, err := n.arb.Get(ctx)
		cancel()
		if n.run.ctx.Err() != nil {
			return
		}
		if errors.Is(err, arbiter.ErrNotFound) {
			err = nil
		}
		p, old := &probed{at: time.Now(), err: err}, n.seen.probed.Load()
		if err != nil {
			p.since = p.at
			if old != nil && old.err != nil {
				p.since = old.since
			}
		}
		n.seen.probed.Store(p)
		switch was := old != nil && old.err != nil; {
		case err != nil && !was:
			n.log.Warn("the arbiter does not answer: both nodes continue to serve, but if one fails now, I/O waits for the arbiter", "err", err)
			n.event("arbiter", "the arbiter does not answer: "+err.Error())
		case err == nil && was:
			n.log.Info("the arbiter answers again", "after", time.Since(old.since).Round(time.Millisecond))
			n.event("arbiter", "the arbiter answers again")
		}
		select {
		case <-t.C:
		case <-n.run.ctx.Done():
			return
		}
	}
}

func (n *Node) arbiterProto() *targetv1.Arbiter {
	p := n.seen.probed.Load()
	if p == nil {
		return nil
	}
	a := &targetv1.Arbiter{Reachable: p.err == nil, Checked: timestamppb.New(p.at)}
	if p.err != nil {
		a.Error, a.UnreachableSince = p.err.Error(), timestamppb.New(p.since)
	}
	return a
}
