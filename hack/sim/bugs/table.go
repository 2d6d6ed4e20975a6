package main

import (
	"slices"

	"github.com/gemel-storage/gemel/internal/testkit/mutate"
)

// bug is a mistake in dataplane/pair, or in the simulated runtime, that the simulator has to find.
// The mistake replaces one text by another; the text must occur exactly once, so that a bug whose
// place has moved is noticed.
type bug struct {
	player     *player // nil: pairs
	rule, name string
	file       string // in dataplane/pair; of runtimes, in dataplane/sim; of nodes, in target
	old, new   string
	more       []mutate.Edit // further changes that the mistake needs
	flags      []string      // of the simulator: faults that every history has
	seeds      int           // bound, 0: maxSeeds
	skip       []uint64      // seeds on which the unchanged code fails
	hints      []uint64      // seeds that caught it quickly: the test plays them first, the table does not
}

// maxSeeds is how many histories may pass before a bug is met.
const maxSeeds = 2000

// The bugs, by rule (docs/pair.md). To add one: copy a line of the machine, break it, name the
// rule. The table leaves out mistakes that a second line of defence or the retries of hosts repair
// before a check can see them. Tests of dataplane/pair catch these instead: the joiner's half of
// the bits, one number for two checkpoints, that a peer that gets on is not late (a busy disk
// answers no probe promptly), the generation of the data (bits are never taken back by one node),
// the path switch alone; a duplicate of a refused write that is judged again (its two frames have
// to be as far apart as the first was refused late); that a partner whose store has stopped leaves
// (the owner excludes it as well); and, which the model has as well (bug19), a lone member that
// takes its own exclusion, after it had asked for {a,b}, for a force; that a damaged block is
// healed, and fetched, under a range of its own (the same bytes are written, and what is read
// half-way is looked at again); that what waited for a resync continues when the resync stops (the
// next change has it continue).
//
// All mistakes except those of R15 are played in plain histories, whose disks keep no checksums:
// the seeds that were found before checksums existed stay useful, and a history in which nothing
// heals hides less.
var bugs = slices.Concat(plain(slices.Concat(machineBugs, copyBugs, cutBugs)), checkedBugs)

// checkedBugs are looked for in histories with checksums.
var checkedBugs = []bug{
	{rule: "R12", name: "a disk that stopped has no time to write out before it counts as stopped", hints: []uint64{8867017930214954404}, file: "slow.go",
		old: "now-p.since >= prompt+writeOut", new: "now-p.since >= prompt+0*writeOut"},
}

// withoutR11e is a further mistake for those of R11a that concern sessions to one node. Hosts of
// the simulator repeat what they give up, and of such a write R11e does not let the first try start
// after its repetition; R11a is what protects a host that returns an error instead.
var withoutR11e = mutate.Edit{File: "beside.go", Old: "return !u.wrote.calm(o.Cmd, o.Cmd.Liveness.At())", New: "return false"}

// supervised histories have a supervisor for each node, and kills.
var supervised = []string{"-with", "killed under a supervisor"}

var machineBugs = []bug{
	{rule: "R1", name: "ack before the mirror answers", file: "write.go",
		old: "\t\to.stage = stMirror\n\t\tm.ops[o.id] = o\n\t\tm.sendMirror(o)\n\t\treturn\n", new: "\t\tm.sendMirror(o)\n"},
	{rule: "R1", name: "status without a lease", file: "write.go",
		old: "if !m.Serving(now) || unflushed {", new: "if unflushed {"},
	{rule: "R1b", name: "alone and not written through", file: "write.go",
		old: "m.act(Action{Kind: ActStore, Op: o, Durable: o.durable})", new: "m.act(Action{Kind: ActStore, Op: o, Durable: o.Cmd.FUA})"},
	{rule: "R1c", name: "alone again while the readmission is undecided", hints: []uint64{8172372821104874231}, file: "readmit.go",
		old: "if r.stage == rsAdmit && r.asked {", new: "if false {"},
	{rule: "R2", name: "act on an epoch before it is durable", file: "membership.go",
		old: "\tif rec.Epoch > m.saved.epoch {", new: "\tif false {"},
	{rule: "R2", name: "follow a record that is older than the own one", file: "membership.go", flags: []string{"-with", "arbiter forgets"},
		old: "if rec.Epoch < m.saved.epoch {", new: "if false {"},
	{rule: "R2", name: "a late write of the arbiter is not barred", file: "membership.go", seeds: 8000, hints: []uint64{13913043195609372571}, flags: []string{"-with", "cut off and the arbiter flaky,arbiter slow"},
		old: "case a.want != nil && a.doubt && rec.Equal(&m.rec):", new: "case false:"},
	{rule: "R2b", name: "a restarted process believes that it is a member", file: "membership.go",
		old: "mine := me != nil && me.Incarnation == m.cfg.Incarnation && me.Store == m.cfg.Store", new: "mine := me != nil && me.Store == m.cfg.Store"},
	{rule: "R2b", name: "both restarted: node a is the source though it rebooted", file: "outside.go", seeds: 8000, hints: []uint64{138191503964160938},
		old: "if peerUnfit || mineKept && !peerKept || mineKept == peerKept && m.cfg.Self == A {", new: "if peerUnfit || mineKept && !peerKept || m.cfg.Self == A {"},
	{rule: "R2b", name: "a rebooted node excludes a peer it has not met", hints: []uint64{795680311429361281}, file: "outside.go", flags: []string{"-with", "power,stop"},
		old: "\tif !mineKept {\n", new: "\tif false {\n"},
	{rule: "R3", name: "serve past the lease", file: "machine.go",
		old: "return m.link.agreed && !m.excl.active && now < m.lease.until", new: "return m.link.agreed && !m.excl.active"},
	{rule: "R3", name: "exclude without waiting for the lease", file: "membership.go",
		old: "until = max(m.lease.answered, m.cfg.Start, m.since) + int64(m.cfg.Lease+m.cfg.Margin) + delay", new: "until = now"},
	{rule: "R3", name: "answer heartbeats while excluding", hints: []uint64{14371957925770729497}, file: "link.go",
		old: "m.saved.saving || m.excl.active || !m.link.agreed || msg.Epoch", new: "m.saved.saving || msg.Epoch"},
	{rule: "R4", name: "a late write is applied after a fail-over", hints: []uint64{6375660721298069179}, file: "membership.go",
		old: "m.straggle = m.applying", new: "m.straggle = 0"},
	{rule: "R4", name: "mirrored writes of one range in any order", hints: []uint64{724529540264149776}, file: "partner.go",
		old: "Request{Shared: msg.looks(),", new: "Request{Shared: true,"},
	{rule: "R4", name: "install while own writes are under way", seeds: 8000, hints: []uint64{4072406216864432618}, file: "resync.go",
		old: "r.install == nil || m.storeOps > 0 || m.applying > 0 ||", new: "r.install == nil ||"},
	{rule: "R4", name: "a frame carries the bytes of the next command", hints: []uint64{8829589598640154606}, file: "ops.go",
		old: "msg.Data = slices.Clone(msg.Data)", new: "msg.Data = slices.Clip(msg.Data)"},
	{rule: "R4", name: "a frame of a node that becomes alone carries the bytes of the next command", file: "standing.go", seeds: 8000, hints: []uint64{10766271031271926435}, flags: []string{"-with", "forced after it was stopped"},
		old: "\tm.dropFrames(\"this node is alone\")\n", new: ""},
	{rule: "R5", name: "no range lock", file: "locks.go",
		old: "o.lock.Shared = s.Kind == scsi.OpRead || s.Kind == scsi.OpMapped || o.copy", new: "o.lock.Shared = true"},
	{rule: "R5", name: "read before the write is on the peer", file: "write.go",
		old: "\t\tm.sendMirror(o)\n\t\treturn\n", new: "\t\tm.sendMirror(o)\n\t\tif o.lock.Held() {\n\t\t\tm.unlock(o)\n\t\t}\n\t\treturn\n"},
	{rule: "R5", name: "a range that the peer refused stays different", file: "write.go",
		old: "o.result = scsi.NoSpace\n\t\tm.repair(now, o)", new: "o.result = scsi.NoSpace\n\t\tdelete(m.ops, o.id)\n\t\tm.answer(now, o)"},
	{rule: "R6", name: "a new store is taken as in sync", file: "outside.go",
		old: "if me == nil || me.Store != m.cfg.Store {", new: "if me == nil {"},
	{rule: "R6", name: "an old copy of a store becomes the source", seeds: 8000, hints: []uint64{2047088865723316168}, file: "outside.go", flags: []string{"-with", "disk restored"},
		old: "\tif m.old() {\n", new: "\tif false {\n"},
	{rule: "R7", name: "resync copy without the range lock", file: "copy.go",
		old: "\t\tm.ops[o.id] = o\n\t\tm.send(&Msg{Type: MsgCopySum,", new: "\t\tm.ops[o.id] = o\n\t\tm.unlock(o)\n\t\tm.send(&Msg{Type: MsgCopySum,"},
	{rule: "R7", name: "readmit onto unflushed pages", file: "resync.go",
		old: "r.stage, r.durable, r.flushing = rsFlush, true, false\n\t\tm.flushJoiner()", new: "r.stage, r.durable = rsAdmit, true\n\t\tm.admit(now)"},
	{rule: "R7", name: "readmit too early: nothing is copied", file: "resync.go",
		old: "r.mirror, r.stage = true, rsCopy\n", new: "r.mirror, r.stage, r.plan.at = true, rsCopy, len(r.plan.objects)\n"},
	{rule: "R7", name: "writes during the resync are not mirrored", file: "machine.go",
		old: "return m.phase == Paired || m.phase == Alone && m.resync.mirror", new: "return m.phase == Paired"},
	{rule: "R8", name: "flush the own disk only", file: "flush.go",
		old: "o.selfOK, o.peerOK = false, !m.mirrors()", new: "o.selfOK, o.peerOK = false, true"},
	{rule: "R8", name: "FUA is not durable on the peer", file: "write.go",
		old: "if s.FUA || m.resync.durable {", new: "if m.resync.durable {"},
	{rule: "R8", name: "no flush on becoming alone", file: "standing.go",
		old: "\tm.exposeFlush()\n\tm.markLost()\n", new: "\tm.exposed = 0\n\tm.markLost()\n"},
	{rule: "R8", name: "claim the record without a flush", file: "claim.go",
		old: "\t\tm.claimed = claimFlushing\n\t\tm.flushSelf()\n", new: "\t\tm.casSelf(now)\n"},
	{rule: "R1b", name: "a write is acknowledged while its node becomes alone, before the flush", file: "standing.go", seeds: 8000, flags: []string{"-with", "session lost,slow link,stop"}, hints: []uint64{11737936130302510928},
		old: "\tm.exposed = 1 // before anything that may answer a command\n", new: "",
		more: []mutate.Edit{{File: "standing.go", Old: "m.scrubStop(now, \"the peer is", New: "m.ScrubStop(now, \"the peer is"},
			{File: "standing.go", Old: "\tm.exposeFlush()\n\tm.markLost()", New: "\tm.exposed = 1\n\tm.exposeFlush()\n\tm.markLost()"}}},
	{rule: "R9", name: "hosts see at the chair what its peer does not have", file: "log.go",
		old: "if l.stage != logStored || l.cur != nil && !l.peerOK {", new: "if l.stage != logStored {"},
	{rule: "R9", name: "an entry is shown that is not durable", file: "log.go",
		old: "if l.stage != logStored || l.cur != nil && !l.peerOK {", new: "if l.stage == logShowing || l.cur != nil && !l.peerOK {"},
	{rule: "R9", name: "an entry that only the chair has is not shown when it becomes alone", file: "log.go",
		old: "\tm.logPeerless(now)\n", new: ""},
	{rule: "R9", name: "an entry that was being made durable when its node became no member is never shown", file: "log.go", flags: []string{"-with", "log hangs"},
		old: "\tl.peerOK = true\n\tif !l.working()", new: "\tif !l.working()"},
	{rule: "R10", name: "transfer while commands run", file: "quiesce.go",
		old: "if u.atWork(q) > 0 || m.heldBefore(u, q) {", new: "if m.heldBefore(u, q) {"},
	{rule: "R10", name: "two owners after a long transfer", hints: []uint64{14306495361677200361}, file: "quiesce.go", seeds: 8000, flags: []string{"-with", "data stuck,stop"},
		old: "case !q.quiet:", new: "case !q.quiet || !q.changes:"},
	{rule: "R10", name: "a joiner passes over what was under way when its LUN was taken over", file: "ops.go", seeds: 8000,
		old: "\t\t\to.seq = u.seq\n\t\t\tm.askAgain(o)\n", new: ""},
	{rule: "R11a", name: "no path switch, and held commands continue", file: "late.go", seeds: 8000, hints: []uint64{2941324039126856064}, flags: []string{"-with", "session lost,slow link,stop"},
		old: "case !o.remote && !o.internal() && !m.pathHere(now, o):", new: "case false:",
		more: []mutate.Edit{{File: "late.go", Old: "\t\to.stray = true\n", New: "\t\to.stray = false\n"}}},
	{rule: "R11a", name: "a command of a host that has moved on takes the path back", hints: []uint64{5399313179616991421}, file: "late.go", flags: []string{"-with", "host cut off"},
		old: "case counts && now-at <= proofMax:", new: "case true:",
		more: []mutate.Edit{{File: "late.go", Old: "if ask.life != nil && ask.life.At() < ask.at {", New: "if false {"}}},
	{rule: "R11a", name: "a write starts for an old sign of life after other hosts started commands", file: "late.go", flags: []string{"-with", "sessions far away"}, hints: []uint64{3344778563042674114},
		old: "o.unit.starts.calm(o.Cmd, at)", new: "true",
		more: []mutate.Edit{{File: "write.go", Old: "|| m.overtaken(o) {", New: "{"}, withoutR11e}},
	{rule: "R11a", name: "the owner does not judge the sign of life of a forwarded write", hints: []uint64{18229201069208926508}, file: "late.go", flags: []string{"-with", "sessions far away"},
		old: "case o.remote && m.owns(o.unit) && m.overtaken(o):", new: "case false:",
		more: []mutate.Edit{{File: "write.go", Old: "m.overtaken(o) {", New: "!o.remote && m.overtaken(o) {"}, withoutR11e}},
	{rule: "R11a", name: "the sign of life of a forwarded write is as young as the last heartbeat", file: "clock.go", flags: []string{"-with", "sessions far away"}, hints: []uint64{15888101227190207578},
		old: "if m.lease.beats[i].here <= at {", new: "if true {",
		more: []mutate.Edit{withoutR11e}},
	{rule: "R11e", name: "sessions of a host to one node are taken for one", file: "beside.go", flags: []string{"-with", "sessions beside each other"},
		old: "return !u.wrote.calm(o.Cmd, o.Cmd.Liveness.At())", new: "return false"},
	{rule: "R11e", name: "forwarded writes over another session do not count", file: "forward.go", flags: []string{"-with", "sessions beside each other"},
		old: "\tm.wroteHere(now, o)\n", new: ""},
	{rule: "R11b", name: "a write that has become too old while it ran is answered BUSY", file: "write.go",
		old: "\tm.finish(now, o, o.result)\n}\n\n// finish ends", new: "\tif o.Cmd.Kind.Writes() && now-o.Cmd.Arrived > int64(m.cfg.AgeMax) {\n\t\to.result = scsi.Busy\n\t}\n\tm.finish(now, o, o.result)\n}\n\n// finish ends"},
	{rule: "R11b", name: "start a write that is too old", file: "late.go",
		old: "return !o.internal() && o.Cmd.Kind.Writes() && now-o.Cmd.Arrived > int64(m.cfg.AgeMax)", new: "return false"},
	{rule: "R11d", name: "a duplicate COMPARE AND WRITE is executed again", file: "forward.go",
		old: "if res, ok := m.fwd.done[msg.ID]; ok {", new: "if res, ok := m.fwd.done[msg.ID]; ok && false {"},
	{rule: "R11d", name: "take a command back that the dead owner had mirrored", file: "standing.go",
		old: "\tif o.peerOK {\n", new: "\tif false {\n"},
	{rule: "R12", name: "an untrusted store becomes the source", hints: []uint64{3218069898357293955}, file: "outside.go",
		old: `if m.cfg.Untrusted != "" {`, new: "if false {"},
	{rule: "R12", name: "a failed flush is reported as good", hints: []uint64{10486580552288857879}, file: "write.go", flags: []string{"-with", "disk errors"},
		old: "\t\to.selfOK = true\n\t\tif res != scsi.OK {", new: "\t\to.selfOK = true\n\t\tif false {"},
	{rule: "R12", name: "serve from a store that failed", file: "membership.go",
		old: "\tif m.leave.why != \"\" {\n\t\treturn\n\t}\n\tm.leave.why = why", new: "\tif m.leave.why != \"\" || m.phase == Paired {\n\t\treturn\n\t}\n\tm.leave.why = why"},
	{rule: "R13", name: "a write without space stays on one node", file: "write.go",
		old: "\t\t\to.result = res\n\t\t\tm.repair(now, o)", new: "\t\t\to.result = res\n\t\t\tm.answer(now, o)"},
	// The bits and what takes them back.
	{rule: "R7", name: "apply before the bit is durable, at the owner", file: "write.go", seeds: 8000, hints: []uint64{7595188434168348327}, flags: []string{"-with", "slow disk and power at a checkpoint,kill"},
		old: "\tif !m.hotOp(now, o) {\n\t\tm.waitHot(o)\n\t\treturn\n\t}\n", new: "\tm.hotOp(now, o)\n"},
	{rule: "R6", name: "a joiner that restarts as a member does not know that its copy is settled", hints: []uint64{18340037187104314127}, file: "membership.go", seeds: 8000, flags: []string{"-with", "both killed,slow disk,disk restored"},
		old: "if rec.Both() && me != nil && me.Store == m.cfg.Store {", new: "if rec.Both() && me != nil && me.Incarnation == m.cfg.Incarnation {"},
	{rule: "R7", name: "a write under way when a checkpoint begins is not counted", hints: []uint64{17609186837491658656}, file: "checkpoint.go", flags: []string{"-with", "slow disk and power at a checkpoint"},
		old: "if !flushOnly && w.began && w.Cmd.Kind.Writes() && !w.copy {", new: "if false {"},
	{rule: "R7", name: "apply before the bit is durable, at the partner", file: "partner.go", seeds: 8000, flags: []string{"-with", "slow disk"}, hints: []uint64{12165432305279820326},
		old: "if m.hotMsg(now, msg.unit, msg) {", new: "if m.hotMsg(now, msg.unit, msg); true {"},
	{rule: "R7", name: "bits are taken back and the partner has not flushed", file: "flush.go",
		old: "o.selfOK, o.peerOK = false, !m.mirrors()\n", new: "o.selfOK, o.peerOK = false, !m.mirrors() || o.ckpt\n"},
	{rule: "R7", name: "bits are taken back and the owner has not flushed", file: "flush.go",
		old: "\tm.storeOps++\n\tm.act(Action{Kind: ActFlush, Op: o, Durable: o.sums})\n", new: "\tif o.ckpt {\n\t\to.selfOK = true\n\t\treturn\n\t}\n\tm.storeOps++\n\tm.act(Action{Kind: ActFlush, Op: o, Durable: o.sums})\n"},
	{rule: "R7", name: "the flush of a checkpoint that a transfer made void counts for a later one", hints: []uint64{10949352346003046483}, file: "checkpoint.go", flags: []string{"-with", "there and back during a checkpoint"},
		old: "c.flush != o {", new: "c.unit != o.unit {"},
	{rule: "R7", name: "the leader forgets what was written since a checkpoint began", file: "checkpoint.go",
		old: "m.clear(c.unit, &c.unit.intents.lead)", new: "m.clear(c.unit, &watch{})"},
	{rule: "R7", name: "the follower forgets what was written since a checkpoint began", hints: []uint64{18129354239256514623}, file: "checkpoint.go",
		old: "m.clear(f.unit, &f.unit.intents.follow)", new: "m.clear(f.unit, &watch{})"},
	{rule: "R7", name: "the follower ignores the leader's list of bits that have to stay", hints: []uint64{8595243419875392519}, file: "checkpoint.go", seeds: 8000,
		old: "n.follow = watch{on: true, recent: keep}", new: "n.follow = watch{on: true}\n\t_ = keep"},
	{rule: "R7", name: "a lone node takes its bits back", file: "checkpoint.go",
		old: "if c.stage != ckIdle || m.phase != Paired ||", new: "if c.stage != ckIdle || m.phase != Paired && m.phase != Alone ||",
		more: []mutate.Edit{{File: "checkpoint.go", Old: "\treturn m.phase == Paired && c.epoch", New: "\treturn c.epoch"},
			{File: "checkpoint.go", Old: "\tc.stage = ckPeer\n\tm.ckptSend(now)\n", New: "\tc.stage = ckPeer\n\tif m.phase == Alone {\n\t\tm.clear(c.unit, &c.unit.intents.lead)\n\t\tm.ckptDrop()\n\t\treturn\n\t}\n\tm.ckptSend(now)\n"}}},
	{rule: "R7", name: "only the joiner's bits are copied", file: "copy.go",
		old: "\t\t\tc.todo.Or(u.intents.hot)\n\t\t\tc.todo.Or(u.intents.setting)\n\t\t\tc.todo.Or(u.intents.next)\n", new: "\t\t\t_ = u\n"},
	{rule: "R7", name: "a plan that continues forgets what was written in between", hints: []uint64{7349630846383677383}, file: "copy.go",
		old: "\tm.planAgain(o)\n}\n", new: "}\n"},
	{rule: "R7", name: "a plan that continues forgets mirrored writes without an answer", hints: []uint64{11346411592892551897}, file: "readmit.go", seeds: 8000, flags: []string{"-with", "link reset,lossy link,data stuck"},
		old: "\t\t\tm.planAgain(o) // the joiner may have it or not\n", new: ""},
	{rule: "R7", name: "a scrub repairs without the range lock", file: "scrub.go",
		old: "\t\to.since = now\n\t\tm.ops[o.id] = o\n\t\tm.send(&Msg{Type: MsgCopySum, Flags: FlagScrub,", new: "\t\to.since = now\n\t\tm.unlock(o)\n\t\tm.ops[o.id] = o\n\t\tm.send(&Msg{Type: MsgCopySum, Flags: FlagScrub,"},
	{rule: "R7", name: "a scrub takes ranges that differ as equal", file: "scrub.go",
		old: "case msg.Result == scsi.OK && msg.Aux == 0:", new: "case msg.Result == scsi.OK:"},
	// Overload.
	{rule: "R12", name: "a peer is excluded for slowness by a node whose own disk has stopped", file: "slow.go",
		old: "case m.phase == Paired && l.peer && !m.selfAlive(now, &l):", new: "case m.phase == Paired && l.peer && !m.selfAlive(now, &l) && false:"},
	{rule: "R12", name: "a node leaves for slowness while the peer is as slow", file: "slow.go",
		old: "case m.phase == Paired && l.self && !m.peerAlive(now, &l):", new: "case m.phase == Paired && l.self && !m.peerAlive(now, &l) && false:"},
	// What a store remembers.
	{rule: "R6", name: "a store from before the last checkpoint is taken as in sync", file: "counterpart.go", flags: []string{"-with", "disk restored"},
		old: "case its.Count[self] != mine.Count[self] &&", new: "case false && its.Count[self] != mine.Count[self] &&",
		more: []mutate.Edit{{File: "counterpart.go", Old: "\t\tmine.Count[peer] != its.Count[peer] &&", New: "\t\tfalse && mine.Count[peer] != its.Count[peer] &&"}}},
	{rule: "R6", name: "the owner takes bits back before the number is durable there", hints: []uint64{4304303222347146973}, file: "checkpoint.go", flags: []string{"-with", "disk restored"},
		old: "\tm.saveState(thenCheckpoint)\n", new: "\tm.ckptSaved(now)\n\tm.saveState(thenNothing)\n"},
	{rule: "R2", name: "force without a new generation", file: "claim.go", flags: []string{"-with", "arbiter forgets"},
		old: "gen := max(m.rec.Generation, m.saved.state.Check.Generation, 1) + 1", new: "gen := max(m.rec.Generation, m.saved.state.Check.Generation, 1)",
		more: []mutate.Edit{{File: "claim.go", Old: "max(gen, rec.Generation+1)", New: "max(gen, rec.Generation)"}}},
	{rule: "R2b", name: "a lone member that never acted on its record keeps it", hints: []uint64{15561628518813967501}, file: "outside.go", seeds: 8000,
		old: "\t\tif m.neverActed() {\n", new: "\t\tif false {\n"},
	// Losses.
	{rule: "R8", name: "a loss is not put on record before the claim", file: "claim.go", flags: []string{"-with", "both lose power"},
		old: "\t\tm.claimed = claimRecording\n\t\tm.saveState(thenClaim)\n\t\treturn\n", new: ""},
	{rule: "R8", name: "a loss is not reported to hosts", file: "claim.go",
		old: "\tm.marking = m.saved.state.Lost\n", new: "\tm.marking = false\n"},
	{rule: "R8", name: "hosts are served before a loss is reported to them", file: "claim.go",
		old: "\tm.act(Action{Kind: ActMarkLost, Units: ids})\n", new: "\tm.act(Action{Kind: ActMarkLost, Units: ids})\n\tm.marking = false\n"},
	{rule: "R8", name: "a node that lost power while exposed believes that it has lost nothing", hints: []uint64{2221002452541844491}, file: "claim.go",
		old: "return (m.rec.Both() || m.saved.state.Flushed < m.rec.Epoch) &&", new: "return m.rec.Both() &&"},
	{rule: "R8", name: "the loss of a forced node is not reported to hosts", file: "claim.go", flags: []string{"-with", "arbiter forgets"},
		old: "if m.saved.state.LostAll || !u.intents.hot.Empty() {", new: "if !u.intents.hot.Empty() {"},
	{rule: "R8", name: "the flush on becoming alone misses late writes", hints: []uint64{3750006332347591235}, file: "standing.go",
		old: "\tif m.straggle == 0 {\n\t\tm.flushSelf()\n\t}\n", new: "\tm.flushSelf()\n",
		more: []mutate.Edit{{File: "partner.go", Old: "\t\tif m.phase == Alone {\n\t\t\tm.exposeFlush()\n\t\t}\n", New: ""}}},
	{rule: "R4", name: "a duplicate is applied under a new owner", hints: []uint64{5339730084464424937}, file: "partner.go", seeds: 8000, flags: []string{"-with", "slow disk,slow link,lossy link"},
		old: "return m.phase == Paired && u.owner == m.cfg.Self && u.applies.Len() > 0", new: "return false"},
	{rule: "R11c", name: "a command ends for its host while the owner still has it", hints: []uint64{1365457523935537084}, file: "abort.go", seeds: 8000,
		old: "\t\t\tm.send(&Msg{Type: MsgForwardAbort, ID: o.id, Front: m.cfg.Incarnation.Nonce})\n\t\t}\n\t}\n\tm.settle(now)", new: "\t\t\tm.finish(now, o, scsi.Aborted)\n\t\t}\n\t}\n\tm.settle(now)"},
	{rule: "R12", name: "an untrusted store is compared with, and not written", seeds: 8000, hints: []uint64{16076424539745441768}, file: "copy.go", flags: []string{"-with", "disk errors"},
		old: "case r.plan.blind && !o.Hole:", new: "case false:"},
	// Records that change over a node's head, and processes and clocks that are not what they seem.
	{rule: "R2", name: "a lone member does not look at the record", file: "watch.go", flags: []string{"-with", "forced while the other serves"},
		old: "if now < m.watchAt || m.resync.stage == rsAdmit {", new: "if true {"},
	{rule: "R2", name: "a lone member continues under its record after a rollback of the arbiter", file: "watch.go", flags: []string{"-with", "arbiter set back while one is alone"},
		old: "if now < m.watchAt || m.resync.stage == rsAdmit {", new: "if true {"},
	{rule: "R2", name: "a lone member whose record was taken joins without an error", file: "watch.go", flags: []string{"-with", "forced while the other serves"},
		old: "if m.phase != Alone || rec.Epoch <= m.rec.Epoch {", new: "if true {"},
	{rule: "R2", name: "a forced node serves before the other one has looked", file: "standing.go", flags: []string{"-with", "forced while the other serves"},
		old: "if m.holdTill = 0; m.saved.state.LostAll || m.renewing {", new: "if m.holdTill = 0; m.renewing {"},
	{rule: "R2b", name: "an equal store id is consent", file: "holder.go", flags: []string{"-with", "disk moved"},
		old: "return s.Store == member.Store && s.Incarnation.Boot == member.Incarnation.Boot && s.Lock == LockSame", new: "return s.Store == member.Store"},
	{rule: "R2b", name: "the same lock under another boot is consent", file: "holder.go", flags: []string{"-with", "disk moved"},
		old: "s.Store == member.Store && s.Incarnation.Boot == member.Incarnation.Boot &&", new: "s.Store == member.Store &&"},
	{rule: "R2b", name: "another lock under the same boot is consent", file: "holder.go", flags: []string{"-with", "disk moved"},
		old: "member.Incarnation.Boot && s.Lock == LockSame", new: "member.Incarnation.Boot"},
	{rule: "R2b", name: "a testimony counts against every process of the node", file: "testimony.go", flags: supervised,
		old: "func (m *Machine) hasEnded(inc Incarnation) bool { return slices.Contains(m.peerEnded, inc) }", new: "func (m *Machine) hasEnded(inc Incarnation) bool { return slices.Contains(m.peerEnded, inc) || len(m.peerEnded) > 1 }"},
	{rule: "R2b", name: "a connection that was reset counts as a testimony", file: "link.go",
		old: "m.exclude(now, \"link down\", false, delay)", new: "m.exclude(now, \"link down\", reset, delay)"},
	{player: runtimes, rule: "R2b", name: "the supervisor reports a process that is stopped", file: "host.go", flags: []string{"-with", "killed under a supervisor,stop"},
		old: "\th.frozen = w.now + d\n\tw.after(d, func() { h.thaw(life) })", new: "\th.frozen = w.now + d\n\tw.after(d, func() { h.thaw(life) })\n\th.testimony.ended = append(h.testimony.ended, h.disk.previous)\n\th.testify(h.testimony.life, true)"},
	{player: runtimes, rule: "R2b", name: "the supervisor gives two processes the same nonce", file: "host.go", flags: supervised,
		old: "Nonce: w.rnd.Uint64() | 1}\n", new: "Nonce: w.rnd.Uint64() | 1}\n\tif n := len(h.testimony.ended); n > 0 {\n\t\tinc = h.testimony.ended[n-1]\n\t}\n"},
	{player: runtimes, rule: "R2b", name: "the supervisor reports a process that continues with another copy of the disk", file: "testimony.go", flags: []string{"-with", "killed under a supervisor,disk moved"},
		old: "if !w.supervised() || slices.ContainsFunc(w.ghosts, func(g *ghost) bool { return g.m == h.m }) {", new: "if !w.supervised() {"},
	{rule: "R2b", name: "both restarted, and the lease of a former process is not waited for", file: "outside.go", flags: []string{"-with", "disk moved"},
		old: "if !m.link.peer.speaksFor(pm) && !m.hasEnded(pm.Incarnation) && !m.leasesOver(now) || !m.succeeds(me) &&", new: "if false &&"},
	{rule: "R2b", name: "a lone member's next life elsewhere serves at once", file: "outside.go", flags: []string{"-with", "disk moved"},
		old: "m.renewing = m.replacing(me)", new: "m.renewing = false"},
	{rule: "R2b", name: "the wait for a former life is forgotten by a restart", file: "holder.go", seeds: 8000, flags: []string{"-with", "disk moved,both killed,kill"},
		old: "if m.saved.state.Replaces || !m.kept(me) {", new: "if !m.kept(me) {"},
	{rule: "R2b", name: "a former life may have read its own record, which was put back", file: "watch.go", flags: []string{"-with", "lone disk moved and the arbiter set back"},
		old: "\t\tm.unsure = m.arb.calls + 1\n\t\tm.watchAt = min(m.watchAt, now)\n\t\tm.reason = unconfirmed\n", new: "\t\tm.reason = \"\"\n\t\tm.saved.state.Replaces = false\n\t\tm.saveState(thenNothing)\n\t\tm.pump(now)\n"},
	{rule: "R2b", name: "a node takes its partner back while it waits for a former life", file: "resync.go", seeds: 8000, hints: []uint64{144795651028940648}, flags: []string{"-with", "disk moved"},
		old: "|| m.marking || m.holdTill != 0 {", new: "|| m.marking {"},
	{rule: "R11d", name: "a forwarded write that was refused half-way is answered BUSY after its owner has died", seeds: 8000, hints: []uint64{2719990894159998101}, flags: []string{"-with", "owner dies after its partner has refused a write"}, file: "write.go",
		old: "if o.touched && res == scsi.Busy {", new: "if false {"},
	{rule: "R2", name: "both are written to the arbiter again before its record is read", file: "resync.go", flags: []string{"-with", "disk moved while both are asked for"},
		old: "m.resync.stage == rsAdmit && !m.resync.asked &&", new: "m.resync.stage == rsAdmit &&"},
	{rule: "R3", name: "a peer that makes the record durable counts as silent after a lease", file: "silence.go", flags: []string{"-with", "slow saves"},
		old: "lapsed = max(lapsed, m.since+int64(m.cfg.MirrorMax))", new: "lapsed = max(lapsed, m.since)"},
	{rule: "R3", name: "a handshake of an earlier record uses up the grace of this one", hints: []uint64{2283876739649846994, 15223344211458100361}, seeds: 8000, file: "membership.go", flags: []string{"-with", "slow saves"},
		old: "m.lease.met, m.lease.graced, m.lease.until, m.lease.graceUntil = false, false, 0, 0", new: "m.lease.met, m.lease.until = false, 0"},
	{rule: "R6", name: "the end of an earlier save counts for a later one", hints: []uint64{12231805778929157702}, file: "checkpoint.go", flags: []string{"-with", "slow saves"},
		old: "if w.id != m.saved.last[w.why] {", new: "if false {"},
	{rule: "R9", name: "a resync waits for a log that always has a next entry", file: "log.go", flags: []string{"-with", "slow saves"},
		old: "m.resyncBegin(now) // between two entries", new: "_ = now // between two entries"},
	{rule: "R9", name: "the joiner is flushed while an entry is under way", file: "resync.go", flags: []string{"-with", "slow saves"},
		old: "r.flushing || m.log.cur != nil || m.log.stage != logIdle {", new: "r.flushing {"},
	{rule: "R3", name: "a step of the wall clock takes no lease back", file: "clock.go", flags: []string{"-with", "clock stops"},
		old: "\tm.lease.until = min(m.lease.until, now)\n", new: ""},
	{rule: "R3", name: "an answer to a heartbeat from before the clock was stopped gives a lease", hints: []uint64{16873012302639936703}, file: "link.go", seeds: 8000, flags: []string{"-with", "clock stops"},
		old: "|| msg.ID < m.lease.beatFrom {", new: "{"},
	{rule: "R3", name: "a lone member continues after its clock was stopped", hints: []uint64{12270261793435971558}, file: "machine.go", flags: []string{"-with", "forced while the other is paused"},
		old: "m.holdTill == 0 && m.unsure == 0 &&", new: "m.holdTill == 0 &&"},
	{rule: "R9", name: "an entry that the partner does not answer is waited for", hints: []uint64{10595297621962066723}, file: "owed.go", flags: []string{"-with", "answers stuck during a transfer"},
		old: "m.link.peer.Moves && now-l.peerAt > int64(m.cfg.MirrorMax)", new: "m.link.peer.Moves && false"},
	{rule: "R12", name: "a node that does not finish an entry of the log stays a member", file: "owed.go", flags: []string{"-with", "log hangs"},
		old: "if m.log.working() && now-m.log.selfAt > limit {", new: "if false {"},
	{rule: "R12", name: "a probe of the peer's disk that is passed over is not repeated", file: "slow.go",
		flags: []string{"-with", "log hangs,slow link,cut off and the arbiter flaky,partition"}, hints: []uint64{14859769440141821367},
		old: "m.link.peer.Moves && now-p.at > probeLost*m.prompt()", new: "false"},
	// Files that are not what the metadata says.
	{rule: "R12", name: "a node that lacks a file is the source of both that restarted", file: "outside.go", flags: []string{"-with", "lost file,both killed"},
		old: "\tif m.cfg.Misfits != \"\" {\n", new: "\tif false {\n"},
	{rule: "R12", name: "missing data of a lone member is copied over data of the joiner", file: "resync.go", flags: []string{"-with", "lost file,kill"},
		old: "if why := m.cfg.Misfits; why != \"\" {", new: "if why := m.cfg.Misfits; false {"},
	{rule: "R12", name: "only later writes are copied to a LUN whose file was created again", file: "resync.go", flags: []string{"-with", "lost file"},
		old: "Meta: encodeIDs(full)})", new: "Meta: encodeIDs(nil)})"},
	// Snapshots.
	{rule: "R14", name: "a snapshot is taken while the LUN is being moved", hints: []uint64{5484984378990538827}, file: "quiesce.go", flags: []string{"-with", "snapshot during a transfer"},
		old: "if u.atWork(q) > 0 || m.heldBefore(u, q) {", new: "if u.atWork(q) > 0 {"},
	{rule: "R14", name: "a snapshot that the joiner lacks is not copied whole", file: "copy.go",
		old: "\tfor _, id := range full {\n", new: "\tfor _, id := range full[:0] {\n"},
	{rule: "R14", name: "a snapshot that a joiner made is complete when the resync is interrupted", hints: []uint64{11415077543986656264}, file: "log.go", flags: []string{"-with", "snapshot while joining"},
		old: "m.logStore(now, !member)", new: "m.logStore(now, false)"},
	// Checksums.
	{rule: "R15", name: "two writes to one block run at once", file: "locks.go",
		old: "\tif off >= end {\n\t\treturn off, end // a flush", new: "\tif true {\n\t\treturn off, end // a flush"},
	{rule: "R15", name: "the owner takes bits back before the checksums are durable", file: "flush.go", flags: []string{"-with", "power,both killed"},
		old: "Op: o, Durable: o.sums})", new: "Op: o})"},
	{rule: "R15", name: "the partner takes bits back before the checksums are durable", file: "flush.go", flags: []string{"-with", "power,both killed"},
		old: "\tif o.sums {\n", new: "\tif false {\n"},
	{rule: "R15", name: "a damaged block is answered", file: "write.go", flags: []string{"-with", "damage"},
		old: "\t\tcase res == scsi.Damaged:\n\t\t\tm.damaged(now, o)\n\t\tcase res == scsi.OK && o.Cmd.Kind.Writes()", new: "\t\tcase res == scsi.Damaged:\n\t\t\tm.result(now, o, scsi.OK)\n\t\tcase res == scsi.OK && o.Cmd.Kind.Writes()"},
	{rule: "R15", name: "a damaged block is compared with", file: "write.go", flags: []string{"-with", "damage"},
		old: "\t\tcase res == scsi.Damaged:\n\t\t\tm.damaged(now, o)\n\t\tcase res == scsi.OK:", new: "\t\tcase res == scsi.Damaged:\n\t\t\tm.result(now, o, scsi.Miscompare)\n\t\tcase res == scsi.OK:"},
	{rule: "R15", name: "a lost block is answered", file: "heal.go", flags: []string{"-with", "rot"},
		old: "\tcase o.healed:\n\t\tm.lost(now, o)\n", new: "\tcase o.healed:\n\t\tm.answer(now, o)\n"},
	{rule: "R15", name: "a block that is good nowhere is asked for without end", file: "heal.go", flags: []string{"-with", "rot"},
		old: "o.healed = res == scsi.Damaged || m.phase != Paired", new: "o.healed = m.phase != Paired"},
	{rule: "R15", name: "the partner's copy is written although it is damaged", file: "heal.go", flags: []string{"-with", "rot"},
		old: "case msg.Result == scsi.Damaged && !o.Verify && !o.full && n > m.cfg.Block:", new: "case false:",
		more: []mutate.Edit{{File: "heal.go", Old: "case msg.Result == scsi.Damaged && !o.Verify && !o.full:", New: "case false:"}, {File: "heal.go", Old: "case msg.Result != scsi.OK && !o.Verify || int64(len(msg.Data)) != n:", New: "case int64(len(msg.Data)) != n:"}}},
	{rule: "R15", name: "a joiner's copy is taken as the last write", file: "heal.go", flags: []string{"-with", "rot"},
		old: "\t\to.Verify = true\n", new: ""},
	{rule: "R15", name: "a joiner is not asked for blocks that its source has lost", file: "heal.go", flags: []string{"-with", "rot"},
		old: "return m.phase == Alone && o.copy", new: "return false && o.copy"},
	{rule: "R15", name: "the damaged blocks of a copied range are not named", file: "copy.go", flags: []string{"-with", "rot"},
		old: "\tif len(o.Bad) > 0 {\n\t\tmsg.Meta = encodeRanges(o.Bad)\n\t}\n", new: ""},
	{rule: "R15", name: "a lone source compares blocks that it has lost", file: "copy.go", flags: []string{"-with", "rot"},
		old: "\tcase len(o.Bad) > 0 && !o.healed:\n\t\tm.damaged(now, o)\n\tcase len(o.Bad) > 0:\n\t\tm.copyBad(now, o)\n", new: ""},
	{rule: "R15", name: "a repair copies damaged blocks", file: "write.go", flags: []string{"-with", "rot,full disk"},
		old: "\t\tif len(o.Bad) > 0 {\n\t\t\tmsg.Meta = encodeRanges(o.Bad) // the peer's own are left as they are\n\t\t}\n", new: ""},
	{rule: "R15", name: "a read waits for the copy of a partner that is gone", file: "standing.go", seeds: 8000, hints: []uint64{18015201539619125150}, flags: []string{"-with", "damage,kill,slow link"},
		old: "\t\tcase stHealAsk:\n\t\t\tm.accept(now, o)\n", new: ""},
	{rule: "R15", name: "a scrub compares with the copy of a damaged owner", file: "scrub.go", flags: []string{"-with", "rot"},
		old: "\tcase len(o.Bad) > 0:\n\t\tm.damaged(now, o)\n", new: ""},
	{rule: "R14", name: "a snapshot that is made during a resync is not compared", hints: []uint64{13499397358212056636}, file: "resync.go",
		old: "\tcase m.planMore(objs):\n", new: "\tcase false:\n"},
}

// plain has what no checksum is needed for played without.
func plain(list []bug) []bug {
	for i := range list {
		if b := &list[i]; b.rule != "R15" {
			b.flags = append([]string{"-plain"}, b.flags...)
		}
	}
	return list
}
