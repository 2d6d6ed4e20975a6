package main

// bug is a mistake in target/pair that the simulator has to find. It is made by replacing one text by another; the text
// must occur exactly once, so that a bug whose place has moved is noticed.
type bug struct {
	rule, name string
	file       string // in target/pair
	old, new   string
	flags      []string // of the simulator: faults that are injected only on request
	seeds      int      // bound, 0: maxSeeds
	skip       []uint64 // seeds on which the unchanged code fails
	hints      []uint64 // seeds that caught it quickly: the test plays them first, the table does not
}

// maxSeeds is how many histories may pass before a bug is met.
const maxSeeds = 2000

// The bugs, by rule (docs/pair.md). To add one: copy a line of the machine, break it, name the rule.
var bugs = []bug{
	{rule: "R1", name: "ack before the mirror answers", file: "io.go",
		old: "\t\to.stage = stMirror\n\t\tm.ops[o.id] = o\n\t\tm.sendMirror(o)\n\t\treturn\n", new: "\t\tm.sendMirror(o)\n"},
	{rule: "R1", name: "status without a lease", file: "io.go",
		old: "if !m.Serving(now) || unflushed {", new: "if unflushed {"},
	{rule: "R1b", name: "alone and not written through", file: "io.go",
		old: "m.act(Action{Kind: ActStore, Op: o, Durable: o.durable})", new: "m.act(Action{Kind: ActStore, Op: o, Durable: o.S.FUA})"},
	{rule: "R1c", name: "alone again while the readmission is undecided", file: "resync.go", hints: []uint64{9658354110188359851},
		old: "if r.stage == rsAdmit && (m.arb.busy || m.saving || m.arb.want != nil) {", new: "if false {"},
	{rule: "R2", name: "act on an epoch before it is durable", file: "membership.go",
		old: "\tif rec.Epoch > m.durable {", new: "\tif false {"},
	{rule: "R2", name: "follow a record that is older than one's own", file: "membership.go", flags: []string{"-arbiter-loss"},
		old: "if rec.Epoch < m.durable {", new: "if false {"},
	{rule: "R2", name: "late arbiter write not barred", file: "membership.go",
		old: "case a.want != nil && a.doubt && rec.Equal(&m.rec):", new: "case false:"},
	{rule: "R2b", name: "a restarted process takes itself for a member", file: "membership.go",
		old: "mine := me != nil && me.Incarnation == m.cfg.Incarnation && me.Store == m.cfg.Store", new: "mine := me != nil && me.Store == m.cfg.Store"},
	{rule: "R2b", name: "both restarted: node a is the source though it rebooted", file: "membership.go",
		old: "if mineKept && !peerKept || mineKept == peerKept && m.cfg.Self == A {", new: "if mineKept && !peerKept || m.cfg.Self == A {"},
	{rule: "R2b", name: "a rebooted node excludes a peer it has not met", file: "membership.go", hints: []uint64{16682345389903257094},
		old: "\tif !mineKept {\n", new: "\tif false {\n"},
	{rule: "R3", name: "serve past the lease", file: "machine.go", hints: []uint64{10244256955227968697},
		old: "return m.agreed && !m.excl.active && now < m.leaseUntil", new: "return m.agreed && !m.excl.active"},
	{rule: "R3", name: "exclude without waiting for the lease", file: "membership.go",
		old: "until = max(m.answered, m.cfg.Start, m.since) + int64(m.cfg.Lease+m.cfg.Margin) + delay", new: "until = now"},
	{rule: "R3", name: "answer heartbeats while excluding", file: "link.go",
		old: "m.saving || m.excl.active || !m.agreed || msg.Epoch", new: "m.saving || msg.Epoch"},
	{rule: "R4", name: "straggling write after a fail-over", file: "membership.go", hints: []uint64{4959851936995993062},
		old: "m.straggle = m.applying", new: "m.straggle = 0"},
	{rule: "R4", name: "mirrored writes of one range in any order", file: "mirror.go", hints: []uint64{3591220867968450056},
		old: "w.lock.Off, w.lock.End = mirrorSpan(msg)", new: "w.lock.Off, w.lock.End = mirrorSpan(msg)\n\tw.lock.Shared = true"},
	{rule: "R4", name: "install while own writes are under way", file: "resync.go", hints: []uint64{35456642694955416},
		old: "r.install == nil || m.storeOps > 0 || m.applying > 0 ||", new: "r.install == nil ||"},
	{rule: "R4", name: "a frame carries the bytes of the next command", file: "mirror.go", seeds: 6000,
		old: "msg.Data = slices.Clone(msg.Data)", new: "msg.Data = slices.Clip(msg.Data)"},
	{rule: "R5", name: "no range lock", file: "io.go",
		old: "o.lock.Shared = s.Kind == scsi.OpRead || s.Kind == scsi.OpMapped || o.copy", new: "o.lock.Shared = true"},
	{rule: "R5", name: "read before the write is on the peer", file: "io.go",
		old: "\t\tm.sendMirror(o)\n\t\treturn\n", new: "\t\tm.sendMirror(o)\n\t\tif o.lock.Held() {\n\t\t\tm.unlock(o)\n\t\t}\n\t\treturn\n"},
	{rule: "R5", name: "a range that the peer refused stays different", file: "mirror.go",
		old: "o.result = scsi.NoSpace\n\t\tm.repair(now, o)", new: "o.result = scsi.NoSpace\n\t\tdelete(m.ops, o.id)\n\t\tm.answer(now, o)"},
	{rule: "R6", name: "a new store is taken as in sync", file: "membership.go",
		old: "if me == nil || me.Store != m.cfg.Store {", new: "if me == nil {"},
	{rule: "R6", name: "an old copy of a store becomes the source", file: "membership.go", hints: []uint64{6333594688270377791}, flags: []string{"-old-disk"},
		old: "if m.cfg.DurableEpoch+1 < m.rec.Epoch {", new: "if false {"},
	{rule: "R7", name: "resync copy without the range lock", file: "resync.go",
		old: "\t\tm.ops[o.id] = o\n\t\tm.send(&Msg{Type: MsgCopySum,", new: "\t\tm.ops[o.id] = o\n\t\tm.unlock(o)\n\t\tm.send(&Msg{Type: MsgCopySum,"},
	{rule: "R7", name: "readmit onto unflushed pages", file: "resync.go",
		old: "r.stage, r.durable = rsFlush, true\n\t\tm.send(&Msg{Type: MsgFlushAll})", new: "r.stage, r.durable = rsAdmit, true\n\t\tm.admit(now)"},
	{rule: "R7", name: "readmit too early: nothing is copied", file: "resync.go",
		old: "if len(r.objects) == 0 {", new: "if len(r.objects) >= 0 {"},
	{rule: "R7", name: "writes during the resync are not mirrored", file: "machine.go",
		old: "return m.phase == Paired || m.phase == Alone && m.resync.mirror", new: "return m.phase == Paired"},
	{rule: "R8", name: "flush the own disk only", file: "io.go",
		old: "o.selfOK, o.peerOK = false, !m.mirrors()", new: "o.selfOK, o.peerOK = false, true"},
	{rule: "R8", name: "FUA is not durable on the peer", file: "mirror.go",
		old: "if s.FUA || m.resync.durable {", new: "if m.resync.durable {"},
	{rule: "R8", name: "no flush on becoming alone", file: "standing.go",
		old: "\tm.exposed = 1\n\tm.flushSelf()\n", new: ""},
	{rule: "R8", name: "claim the record without a flush", file: "membership.go",
		old: "\t\tm.claimed = claimFlushing\n\t\tm.flushSelf()\n", new: "\t\tm.casSelf(now)\n"},
	{rule: "R9", name: "the chair does not wait for the peer", file: "log.go",
		old: "l.peerOK = !m.mirrors()", new: "l.peerOK = true"},
	{rule: "R10", name: "transfer while commands are at work", file: "path.go",
		old: "\t\tif u.started > 0 {\n\t\t\treturn\n\t\t}\n\t}\n\tq.quiet = true", new: "\t\t_ = u\n\t}\n\tq.quiet = true"},
	{rule: "R10", name: "two owners after a transfer that took long", file: "path.go", hints: []uint64{15586081174070009359},
		old: "if now > q.deadline && !q.quiet {", new: "if now > q.deadline {"},
	{rule: "R11a", name: "no path switch", file: "io.go", hints: []uint64{9658354110188359851},
		old: "case !o.remote && !o.copy && !m.pathHere(now, o):", new: "case false:"},
	{rule: "R11b", name: "start a write that is too old", file: "io.go",
		old: "if s.Kind.Writes() && now-s.Arrived > int64(m.cfg.AgeMax) {", new: "if false {"},
	{rule: "R11d", name: "a duplicate COMPARE AND WRITE is executed again", file: "forward.go", hints: []uint64{16091561659735731040},
		old: "if res, ok := m.fwdDone[msg.ID]; ok {", new: "if res, ok := m.fwdDone[msg.ID]; ok && false {"},
	{rule: "R11d", name: "take a command back that the dead owner had mirrored", file: "standing.go", hints: []uint64{3800173818583621032},
		old: "\tif o.peerOK {\n", new: "\tif false {\n"},
	{rule: "R12", name: "an untrusted store becomes the source", file: "membership.go", hints: []uint64{9605225285449410790},
		old: `if m.cfg.Untrusted != "" {`, new: "if false {"},
	{rule: "R12", name: "a failed flush is reported as good", file: "io.go", hints: []uint64{11496969465008609610},
		old: "\t\to.selfOK = true\n\t\tif res != scsi.OK {", new: "\t\to.selfOK = true\n\t\tif false {"},
	{rule: "R12", name: "serve from a store that failed", file: "membership.go",
		old: "\tif m.leaving != \"\" {\n\t\treturn\n\t}\n\tm.leaving = why", new: "\tif m.leaving != \"\" || m.phase == Paired {\n\t\treturn\n\t}\n\tm.leaving = why"},
	{rule: "R13", name: "a write without space stays on one node", file: "io.go",
		old: "\t\t\to.result = res\n\t\t\tm.repair(now, o)", new: "\t\t\to.result = res\n\t\t\tm.answer(now, o)"},
}
