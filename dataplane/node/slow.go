package node

import (
	"context"
	"errors"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// slow begins the actions that are not on the command path.
func (n *Node) slow(x pair.Action) {
	k := n.peer.linkN.Load()
	switch x.Kind {
	case pair.ActProbe:
		n.run.tasks.Go(taskProbe, func() {
			if n.probeDisk(x.LUN) {
				n.do(func(m *pair.Machine, now int64) { m.Probed(now, x.ID) })
			}
		})
	case pair.ActFlush:
		n.run.tasks.Go(taskFlush, func() { n.storeDoneAsync(x.Op, n.flush(x.Op.LUN, x.Durable)) })
	case pair.ActCompare:
		n.run.tasks.Go(taskCommand, func() { n.storeDoneAsync(x.Op, n.compare(x.Op)) })
	case pair.ActRepairRead:
		n.run.tasks.Go(taskHeal, func() { n.storeDoneAsync(x.Op, n.repairRead(x.Op)) })
	case pair.ActCopyRead:
		n.run.tasks.Go(taskResync, func() { n.storeDoneAsync(x.Op, n.copyRead(x.Op)) })
	case pair.ActCopyFree:
		n.io.buffers.put(x.Op.Buf)
		x.Op.Buf = nil
	case pair.ActPeerFlush:
		n.async(func() {
			res := scsi.WriteError
			if x.Msg.Flags&pair.FlagProbe == 0 {
				res = n.flush(x.Msg.LUN, x.Msg.Flags&pair.FlagSums != 0)
			} else if n.probeDisk(x.Msg.LUN) {
				res = scsi.OK
			}
			n.appliedAsync(k, x.Msg, res)
		})
	case pair.ActCompareSum:
		n.async(func() {
			need, res := n.compareSum(x.Msg)
			n.do(func(m *pair.Machine, now int64) { m.SumDone(now, k, x.Msg, need, res) })
		})
	case pair.ActFetch:
		n.async(func() { n.fetch(k, x.Msg) })
	case pair.ActHeal:
		n.run.tasks.Go(taskHeal, func() { n.storeDoneAsync(x.Op, n.heal(x.Op)) })
	case pair.ActAccept:
		n.run.tasks.Go(taskHeal, func() { n.storeDoneAsync(x.Op, n.accept(x.Op)) })
	case pair.ActFlushAll:
		n.async(func() {
			res := n.syncAll(x.Msg != nil)
			if x.Msg != nil {
				if err := errors.Join(n.clearCopying(n.wholeCopies()), n.store.Trust(), n.trustVolumes()); err != nil && res == scsi.OK { // a full copy is on stable storage now (R12)
					res = scsi.WriteError
				}
				n.appliedAsync(k, x.Msg, res)
			} else {
				n.do(func(m *pair.Machine, now int64) { m.SelfFlushed(now, res == scsi.OK) })
			}
		})
	case pair.ActSaveEpoch:
		n.run.tasks.Go(taskState, func() {
			err := n.saveEpoch(x.Record, x.Durable, x.ID, x.State)
			if err != nil {
				n.log.Error("cannot save the epoch", "err", err)
			}
			n.do(func(m *pair.Machine, now int64) { m.EpochSaved(now, x.Record.Epoch, err == nil) })
		})
	case pair.ActArbiterGet, pair.ActArbiterCAS:
		n.run.tasks.Go(taskTick, func() { n.askArbiter(x) })
	case pair.ActAppend:
		n.run.tasks.Go(taskLog, func() { n.append(x.Index, x.Meta, x.Joining) })
	case pair.ActShow:
		n.run.tasks.Go(taskLog, n.show)
	case pair.ActProposed:
		n.proposalEnded(x)
	case pair.ActInstall:
		n.async(func() { n.install(k, x.Msg) })
	case pair.ActExport:
		n.run.tasks.Go(taskResync, n.export)
	case pair.ActResyncList:
		n.run.tasks.Go(taskResync, n.listForResync)
	case pair.ActTakeAll:
		n.run.tasks.Go(taskPropose, n.takeAll)
	case pair.ActIntend:
		n.run.tasks.Go(taskBits, func() { n.intend(x.LUN, x.Regions) }) // of hosts' writes too; the machine keeps what waits for it in order
	case pair.ActSaveState:
		n.run.tasks.Go(taskState, func() {
			err := n.saveState(x.ID, x.State)
			if err != nil {
				n.log.Error("cannot save the node's own state", "err", err)
			}
			n.do(func(m *pair.Machine, now int64) { m.StateSaved(now, x.ID, err == nil) })
		})
	case pair.ActProve:
		x.Alive.Ask(func() { n.do(func(m *pair.Machine, now int64) { m.Proved(now, x.Alive) }) })
	case pair.ActMarkLost:
		n.run.tasks.Go(taskPropose, func() { n.markLost(x.Units) })
	case pair.ActDrain:
		n.killGathering(x.Host, x.LUN)
		n.iscsi.DrainHost(x.Host, func() { n.do(func(m *pair.Machine, now int64) { m.Drained(now, x.ID) }) })
	case pair.ActQuiet:
		n.quietEnded(x)
	case pair.ActRequest:
		n.request(k, x.Msg)
	case pair.ActALUA:
		n.aluaChanged(x.LUN)
	case pair.ActEvent:
		n.log.Info("pair: " + x.Text)
		if x.Damage != nil { // before the event: a reader of the event may ask for the finding at once
			n.seen.damage.add(x.Damage, time.Now())
		}
		n.event("pair", x.Text)
		n.waits.standing.changed()
	case pair.ActDropHosts:
		n.run.tasks.Go(taskEnd, func() { n.iscsi.DropConnections(x.Text) })
	case pair.ActProveHosts:
		n.run.tasks.Go(taskEnd, func() { n.iscsi.DropSilent(x.Text) })
	case pair.ActDropLink:
		n.peer.link.Break(x.Text)
	}
}

// async is work for the peer, which has to end before the next link begins (R4).
func (n *Node) async(f func()) {
	n.peer.applies.Add()
	n.run.tasks.Go(taskApply, func() {
		defer n.peer.applies.Done()
		f()
	})
}

// arbiterTimeout bounds one attempt (the machine tries again).
const arbiterTimeout = time.Second

func (n *Node) askArbiter(x pair.Action) {
	ctx, cancel := context.WithTimeout(n.run.ctx, arbiterTimeout)
	defer cancel()
	var rec pair.Record
	var version string
	var err error
	out := pair.Got
	if x.Kind == pair.ActArbiterGet {
		rec, version, err = n.arb.Get(ctx)
	} else {
		rec = *x.Record
		version, err = n.arb.CompareAndSwap(ctx, x.Version, rec)
	}
	text := ""
	switch {
	case err == nil:
	case errors.Is(err, arbiter.ErrNotFound):
		out = pair.Missing
	case errors.Is(err, arbiter.ErrConflict):
		out = pair.Conflict
	default:
		out, text = pair.Unknown, err.Error()
		n.seen.metrics.arbiterErrors.Add(1)
		n.log.Warn("arbiter", "err", err)
	}
	n.do(func(m *pair.Machine, now int64) { m.ArbiterDone(now, out, &rec, version, text) })
}
