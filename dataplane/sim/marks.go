package sim

import (
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// mark is a situation that only some histories meet. One that no history meets is not tested,
// whatever else passes.
type mark int

const (
	markExclude mark = iota
	markReadmit
	markRenew
	markNoOpRecord
	markConflict
	markLateLanded
	markLateRefused
	markEmptied
	markRolledBack
	markExcusedDisk
	markLinkWaited
	markResyncStopped
	markPaused
	markDropHosts
	markSwap
	markMiscompare
	markTorn
	markReadError
	markReadWaited
	markOverload
	markBothStop
	markWriteWaited
	markWriteError
	markFlushError
	markUntrustedStart
	markLostFile
	markMisfitStart
	markPutBack
	markTrusted
	markReplaced
	markRestored
	markStopMoving
	markStopResync
	markKillMoving
	markKillResync
	markKillExcluding
	markKillAsking
	markKillUnsent
	markPowerUnflushed
	markDuplicate
	markRedone
	markKnownByMirror
	markBothPower
	markImpatient
	markLost
	markPublished
	markYield
	markSnapshot
	markSnapUndone
	markSnapVoid
	markSnapDeleted
	markInstant
	markCut
	markCutVoid
	markProof
	markGhost
	markForced
	markThereAndBack
	markOldTestimony
	markRestoredYoung
	markSlowSave
	markFlip
	markScrubbed
	markOver
	markOverAgain
	markTaken
	markForked
	markGhostServes
	markUnansweredLone
	markStood
	markDamage
	markHealed
	markLostAnswered
	markCopiedBad
	markOlderCopy
	markOverwritten
	marks
)

var markNames = [marks]string{
	markExclude: "record: exclude", markReadmit: "record: readmit", markRenew: "record: renew", markNoOpRecord: "record: no-op successor",
	markConflict: "arbiter: conflict", markLateLanded: "arbiter: late write landed", markLateRefused: "arbiter: late write refused",
	markEmptied: "arbiter: emptied", markRolledBack: "arbiter: rolled back",
	markExcusedDisk: "end: excused, both disks have failed", markLinkWaited: "link waits for applications",
	markResyncStopped: "resync stopped", markPaused: "connection dropped after a pause", markDropHosts: "connections dropped after silence",
	markSwap: "compare and write: swapped", markMiscompare: "compare and write: miscompare", markTorn: "write torn by a death",
	markReadError: "disk: read error", markReadWaited: "disk: a read waits in the queue for longer than Dm",
	markBothStop: "both disks stop", markOverload: "writes above the disks' speed", markWriteWaited: "disk: a write waits for room", markWriteError: "disk: write error", markFlushError: "disk: flush error",
	markUntrustedStart: "store untrusted at start", markLostFile: "a file is lost while its node is stopped", markMisfitStart: "file missing at start",
	markPutBack: "a lost file is put back", markTrusted: "store trusted again", markReplaced: "disk replaced",
	markRestored: "old copy of a disk restored", markStopMoving: "stop during transfer", markStopResync: "stop during resync",
	markKillMoving: "kill during transfer", markKillResync: "kill during resync", markKillExcluding: "kill while excluding",
	markKillAsking: "kill while a write is on its way to the arbiter", markKillUnsent: "kill with frames unsent",
	markPowerUnflushed: "power cut with unflushed pages", markDuplicate: "forwarded command answered twice",
	markRedone: "forwarded command taken back and executed", markKnownByMirror: "forwarded write known by its mirror frame",
	markOver: "process: ended without a stop", markOverAgain: "process: ended soon after it was started again",
	markForced: "record: force", markOldTestimony: "a testimony comes while the next process of the node serves", markThereAndBack: "back at its owner during the flush of an earlier checkpoint", markRestoredYoung: "old copy of a disk restored, of the present epoch or the one before",
	markSlowSave: "a node's own state takes longer than a lease to become durable",
	markFlip:     "a block changes behind a node's back", markScrubbed: "scrub compared everything",
	markUnansweredLone: "a lone member whose record is gone serves, for the arbiter does not answer it",
	markGhostServes:    "a process serves on after its disk has gone",
	markDamage:         "a block changes under load", markHealed: "a damaged block is healed",
	markLostAnswered: "a host is answered that a block is lost", markCopiedBad: "a lost block is copied as bad",
	markOlderCopy:   "a joiner's copy of a damaged block is not what was written last",
	markOverwritten: "a host writes a lost block again",
	markStood:       "a machine was paused with its clocks",
	markTaken:       "a lone member finds the record forced", markForked: "a lone member finds another record of its epoch",
	markImpatient: "a host gives a command up",
	markBothPower: "both nodes lost power", markLost: "hosts get MEDIUM ERROR after a loss", markSnapshot: "snapshot taken", markSnapUndone: "a snapshot left by a dead proposer is undone", markSnapVoid: "a snapshot whose copy cannot end is undone", markSnapDeleted: "a snapshot is deleted",
	markCut: "a cut through LUNs is judged against what hosts saw", markCutVoid: "a node that was not told asks the log about a cut",
	markInstant: "a snapshot is judged against what hosts saw", markProof: "a host shows a sign of life", markGhost: "a command arrives whose host has gone on", markYield: "record: yield", markPublished: "a host publishes again after a loss",
}

// Marks count the situations that were met.
type Marks [marks]uint32

func (w *world) mark(m mark) { w.res.Marks[m]++ }

// markDeath looks at what a node that dies leaves behind.
func (h *host) markDeath() {
	w := h.w
	if h.moving > 0 {
		w.mark(markKillMoving)
	}
	if h.resyncing {
		w.mark(markKillResync)
	}
	if h.excluding {
		w.mark(markKillExcluding)
	}
	if w.arb.flight[h.id] > 0 {
		w.mark(markKillAsking)
	}
	if len(w.net.lanes[h.id][0].queue) > 0 {
		w.mark(markKillUnsent)
	}
}

// frameNames are the frames that a trace shows.
var frameNames = map[pair.MsgType]string{pair.MsgStepDown: "step down", pair.MsgForward: "forward", pair.MsgForwardResult: "forward result",
	pair.MsgMirror: "mirror", pair.MsgMirrorAck: "mirror ack", pair.MsgForwardAbort: "forward abort", pair.MsgPathSwitch: "path switch", pair.MsgPathSwitchAck: "path switch ack"}

// sending looks at a frame as the machine gives it.
func (h *host) sending(msg *pair.Msg) {
	if name := frameNames[msg.Type]; name != "" && h.w.cfg.Trace {
		h.w.trace("    %v -> %s %d", h.id, name, msg.ID)
	}
	switch msg.Type {
	case pair.MsgForwardResult:
		k := uint64(h.w.nodes[h.id.Peer()].life)<<40 | msg.ID
		if h.results[k] {
			h.w.mark(markDuplicate)
		}
		if msg.Result != scsi.Unavailable {
			h.results[k] = true
		}
	case pair.MsgAppend:
		h.asks(msg)
	case pair.MsgForward:
		if a := h.attempts[msg.Op]; a != nil {
			a.forwarded = true
		}
	case pair.MsgMirror:
		if msg.Op != nil {
			h.starts(msg.Op)
		}
		if front := h.w.nodes[h.id.Peer()]; msg.FrontN != 0 && front.m != nil && msg.Front == front.disk.previous.Nonce && front.refused[msg.FrontN] {
			h.w.fail("BUSY: node %v starts the write that node %v forwarded as number %d, and whose host was answered BUSY", h.id, front.id, msg.FrontN)
		}
	}
}

// receiving looks at a frame before the machine is given it. The front end answers its host at
// once.
func (h *host) receiving(msg *pair.Msg) {
	// Only a member forwards; what comes before is an answer to a former process.
	if msg.Type == pair.MsgForwardResult && msg.Result == scsi.Busy && h.phase == pair.Paired {
		h.refused[msg.ID] = true
	}
}

// ended looks at a command of a host as it leaves the machine.
func (h *host) ended(a *attempt) {
	if !a.forwarded || a.op.Cmd.Result != scsi.OK || !a.l.kind.writes() {
		return
	}
	switch {
	case a.started:
		h.w.mark(markRedone)
	case h.m.View(h.clock()).Phase == pair.Alone:
		h.w.mark(markKnownByMirror)
	}
}
