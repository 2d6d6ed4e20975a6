package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/work"
)

// The chair of the pair, the first member on record, decides who owns what, and no one else does:
// it asks package balance with what both nodes know of their hosts, and carries out the answer. A
// move carries the epoch and the numbers of the ownership that it was decided on, so that a late
// one does nothing. Nothing of it is on the command path, and a chair that cannot decide leaves
// every LUN where it is: commands are served at either node.

// Times of the chair.
const (
	chairEvery = 2 * time.Second
	askTime    = time.Second           // for the other node's report
	calmHold   = 50 * time.Millisecond // for a move that can wait: a batch that does not get quiet by then is split, then postponed
	maxLate    = 3                     // moves postponed in one decision: then the pair is too busy for the others as well
	movesKept  = 32
	firstPause = 5e-3 // seconds for which a move is taken to hold commands before one was made
)

// chair is what is remembered between two decisions.
type chair struct {
	// Of the loop.
	balancer *balance.Balancer // nil: this node does not decide
	epoch    uint64
	looker   looker
	observed map[string]balance.Reason // moves that the policy forbids, so that each is reported once
	tries    map[string]int            // by LUN: how often its move was postponed

	mu    sync.Mutex
	moves []*targetv1.OwnershipMove
	total map[balance.Reason]uint64 // that were made
	n     uint64
	away  int
	waits string
	use   []work.Resource // what the nodes use of each resource
	disk  string          // backing volume whose disks are what work is measured in; empty: CPUs
	even  string          // why no work is evened
	on    bool
}

// chairLoop decides every few seconds while this node is the chair.
func (n *Node) chairLoop() {
	t := time.NewTicker(chairEvery)
	defer t.Stop()
	for {
		select {
		case <-n.run.ctx.Done():
			return
		case <-t.C:
		}
		n.decide()
	}
}

// decides reports whether this node is the chair of two members that know of decisions.
func (n *Node) decides(v *pair.View) bool {
	return v.Phase == pair.Paired && v.Agreed && v.Serving && v.Record.Both() && v.Record.Chair() == n.self && n.peerKnows(featureOwnership)
}

// policy is how to decide: as was set for the pair, else as the flags say.
func (n *Node) policy(set *meta.Policy) balance.Policy {
	if set == nil {
		set = &meta.Policy{Mode: n.cfg.Balancing, FailBackDelay: time.Duration(n.cfg.FailBackDelay)}
	}
	mode, _ := balance.ParseMode(set.Mode)
	return balance.Policy{Mode: mode, FailBackDelay: set.FailBackDelay}
}

func (n *Node) decide() {
	c := &n.chair
	v := n.View()
	if !n.decides(&v) {
		c.leave()
		return
	}
	now := n.boottime()
	if c.balancer == nil || c.epoch != v.Record.Epoch { // every delay and rest begins again
		c.balancer, c.epoch, c.looker, c.observed = balance.New(now, balance.Policy{}), v.Record.Epoch, looker{since: now, pause: firstPause}, map[string]balance.Reason{}
		c.tries = map[string]int{}
	}
	var reports [2]useReport
	reports[n.self] = n.use()
	ctx, cancel := context.WithTimeout(n.run.ctx, askTime)
	defer cancel()
	if err := n.call(ctx, "use", struct{}{}, &reports[n.self.Peer()]); err != nil {
		n.log.Debug("cannot decide who owns which LUN without the other node's report", "err", err)
		return
	}
	n.md.mu.Lock()
	luns, drain, set, version := n.md.state.SortedLUNs(), n.md.state.Drain, n.md.state.Policy, n.md.state.PolicyVersion()
	n.md.mu.Unlock()
	policy := n.policy(set)
	c.balancer.SetPolicy(policy)
	view, seqs := c.looker.look(now, luns, drain, reports)
	moves := c.balancer.Decide(view)
	c.note(view, policy, drain)
	due := slices.DeleteFunc(slices.Clone(moves), func(m balance.Move) bool { return m.Dry })
	c.observe(moves)
	c.forgetTries(due)
	late, on := 0, &decided{v.Record.Epoch, version, seqs, warmDecision}
	for _, batch := range balance.Batches(view, due) {
		if late += n.makeMoves(on, batch); late > maxLate {
			return // what is left is decided again
		}
	}
}

// holdFor is how long a batch may be held. One that was postponed may be held for twice as long the
// next time: commands of a slow disk take longer than a calm hold, and a LUN under steady load
// would never go home.
func (c *chair) holdFor(batch []balance.Move) time.Duration {
	if batch[0].Reason.Urgent() { // then all of them are
		return transferHold
	}
	tries := 0
	for _, m := range batch {
		tries = max(tries, c.tries[m.LUN])
	}
	return min(calmHold<<min(tries, 8), transferHold)
}

// forgetTries forgets the LUNs that are not to move any more.
func (c *chair) forgetTries(due []balance.Move) {
	old := c.tries
	c.tries = map[string]int{}
	for _, m := range due {
		if k := old[m.LUN]; k > 0 {
			c.tries[m.LUN] = k
		}
	}
}

// decided is what moves were decided on. If it is not so any more when they are made, they are
// late.
type decided struct {
	epoch  uint64
	policy uint64            // version
	seqs   map[string]uint64 // of the ownership, by LUN
	warm   time.Duration     // what is left of warmDecision
}

// warmFor is how much later a batch may be for reading ahead.
func (on *decided) warmFor(batch []balance.Move) time.Duration {
	return min(warmLimit(batch[0].Reason.Urgent()), on.warm)
}

// waited takes a move off that took so long, of which up to limit was for reading ahead.
func (on *decided) waited(limit, took time.Duration) { on.warm -= min(limit, took) }

// makeMoves carries out a batch, and counts what is postponed: more than maxLate if the pair is not
// what it was.
func (n *Node) makeMoves(on *decided, batch []balance.Move) (late int) {
	req := transferRequest{To: batch[0].To.String(), Epoch: on.epoch, Policy: &on.policy, Home: batch[0].SetsHome, Hold: n.chair.holdFor(batch), Warm: on.warmFor(batch), Seqs: map[string]uint64{}}
	var ids []string
	for _, m := range batch {
		ids = append(ids, m.LUN)
		req.Seqs[m.LUN] = on.seqs[m.LUN]
	}
	ctx, cancel := context.WithTimeout(n.run.ctx, 5*time.Second+req.Warm)
	start := time.Now()
	_, pause, err := n.move(ctx, ids, req)
	cancel()
	on.waited(req.Warm, time.Since(start))
	if v := n.View(); v.Record.Epoch != on.epoch || n.run.ctx.Err() != nil {
		return maxLate + 1
	}
	switch {
	case err != nil && len(batch) > 1:
		for i := range batch {
			if late += n.makeMoves(on, batch[i:i+1]); late > maxLate {
				break
			}
		}
		return late
	case err != nil:
		id := batch[0].LUN
		if n.chair.tries[id]++; n.chair.tries[id] == 1 { // once
			n.log.Info("a move of ownership is postponed", "lun", id, "to", req.To, "reason", batch[0].Reason, "err", err)
		}
		return 1
	}
	if k := &n.chair.looker; pause > 0 {
		k.pause += (pause.Seconds() - k.pause) / 4
	}
	for _, m := range batch {
		n.chair.balancer.Moved(n.boottime(), m)
		n.chair.record(m)
	}
	n.event("ownership", fmt.Sprintf("%d LUNs moved from node %s to node %s (%s): %s; held for %v", len(batch), batch[0].From, batch[0].To,
		batch[0].Reason, batch[0].Text, pause.Round(time.Microsecond)))
	return 0
}

// leave forgets everything: this node does not decide at present.
func (c *chair) leave() {
	c.balancer, c.observed = nil, nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on, c.away, c.waits = false, 0, ""
}

// observe records moves that the policy forbids, each once for as long as it is due.
func (c *chair) observe(moves []balance.Move) {
	due := map[string]balance.Reason{}
	for _, m := range moves {
		if !m.Dry {
			continue
		}
		if due[m.LUN] = m.Reason; c.observed[m.LUN] != m.Reason {
			c.record(m)
		}
	}
	c.observed = due
}

func (c *chair) record(m balance.Move) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if !m.Dry {
		if c.total == nil {
			c.total = map[balance.Reason]uint64{}
		}
		c.total[m.Reason]++
	}
	c.moves = append(c.moves, &targetv1.OwnershipMove{Number: c.n, Lun: m.LUN, FromNode: m.From.String(), ToNode: m.To.String(),
		Reason: string(m.Reason), Text: m.Text, Observed: m.Dry, Time: timestamppb.Now()})
	if len(c.moves) > movesKept {
		c.moves = slices.Delete(c.moves, 0, len(c.moves)-movesKept)
	}
}

// note keeps for the status what is away from home, and why.
func (c *chair) note(v *balance.View, p balance.Policy, d *meta.Drain) {
	away, why := whyAway(v, p, d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on, c.away, c.waits = true, away, why
	c.use, c.disk = c.looker.resources, v.Disk
	c.even = c.balancer.Calm()
}

// collect gives the metrics.
func (c *chair) collect(count func(d *prometheus.Desc, v uint64, labels ...string), gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for reason, k := range c.total {
		count(descMoves, k, string(reason))
	}
	gauge(descAway, float64(c.away))
	if !c.on {
		return
	}
	for _, r := range c.use {
		for i, use := range r.Use {
			if r.Volume == "" {
				gauge(descUse, use, balance.Node(i).String())
			} else {
				gauge(descDiskUse, use, balance.Node(i).String(), r.Volume)
			}
		}
	}
}

// ownership is the status for people.
func (n *Node) ownership() *targetv1.Ownership {
	c := &n.chair
	o := &targetv1.Ownership{}
	if d := n.drained(); d != nil {
		o.DrainedNode, o.DrainedUntil, o.DrainReason = d.Node, timestamppb.New(d.Until), d.Reason
	}
	if count, last := n.heldByPeople(); count > 0 {
		o.Held, o.HeldUntil = uint32(count), timestamppb.New(last)
	}
	n.md.mu.Lock()
	set := n.md.state.Policy
	o.PolicyVersion = n.md.state.PolicyVersion()
	n.md.mu.Unlock()
	p := n.policy(set)
	o.Mode, o.FailBackDelay = p.Mode.String(), durationpb.New(p.Delay())
	c.mu.Lock()
	defer c.mu.Unlock()
	o.Decides, o.Away, o.WaitsFor, o.Moves = c.on, uint32(c.away), c.waits, slices.Clone(c.moves)
	if c.on {
		o.Even, o.MeasuredIn = c.even, "CPUs"
		if c.disk != "" {
			o.MeasuredIn = "disk of volume " + c.disk
		}
		for _, r := range c.use {
			if r.Volume == "" {
				o.Use = slices.Clone(r.Use[:])
			} else {
				o.Disks = append(o.Disks, &targetv1.DiskUse{Volume: r.Volume, Use: slices.Clone(r.Use[:])})
			}
		}
	}
	return o
}
