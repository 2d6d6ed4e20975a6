package main

// shaped asks for one kind of history.
func shaped(name string) []string { return []string{"-nodesim.shape", name} }

// The mistakes of the layers around pair.Machine, with the rule that each breaks. A history of
// whole nodes takes a second, so a mistake has to be caught within a few histories of the kind that
// is made for it.
var nodeBugs = []bug{
	{player: nodes, rule: "R11c", name: "the entry of a LUN RESET waits for commands that wait for an entry", file: "scsi/nexus.go", flags: shaped("fencing"), seeds: 20,
		old: "t.serverRef.asked }, true, done)", new: "t.serverRef.asked }, false, done)"},
	{player: nodes, rule: "R11c", name: "the entry of a PREEMPT AND ABORT waits for such commands", file: "scsi/nexus.go", flags: shaped("fencing"), seeds: 20,
		old: "return *o == id }), onUnit(u), loudly, true, done)", new: "return *o == id }), onUnit(u), loudly, false, done)"},
	{player: nodes, rule: "R11c", name: "the entry that unmaps a host waits for such commands", file: "scsi/nexus.go", flags: shaped("fencing"), seeds: 20,
		old: "s.abort(nexuses, onUnit(u), loudly, true, done)", new: "s.abort(nexuses, onUnit(u), loudly, false, done)"},
	{player: nodes, rule: "R11c", name: "a reset leaves later commands of its host without an answer", file: "scsi/nexus.go", flags: shaped("fencing"), seeds: 20,
		old: "t.Nexus.ID == by && t.serverRef.asked }", new: "t.Nexus.ID == by }"},
	{player: nodes, rule: "R11c", name: "registrations of a host that was unmapped stay", file: "node/fence.go", flags: shaped("fencing"), seeds: 20,
		old: "if host != \"\" && left != host {", new: "if left != \"\" {"},
	{player: nodes, rule: "R9", name: "a TARGET RESET reaches LUNs of other hosts", file: "node/metalog.go", flags: shaped("fencing"), seeds: 20,
		old: "if _, ok := e.lun.Maps[host]; ok {", new: "if _, ok := e.lun.Maps[host]; ok || true {"},
	{player: nodes, rule: "R12", name: "a cache miss is read on the goroutine that reads the link", file: "node/readers.go", flags: shaped("slow reads"), seeds: 10,
		old: "\te.readers.read(int64(len(s.Data)), func() {", new: "\tif a.at == onLink {\n\t\tn.storeDone(a, o, n.runOp(o, false))\n\t\treturn\n\t}\n\te.readers.read(int64(len(s.Data)), func() {"},
	{player: nodes, rule: "R12", name: "a cache miss is read on the goroutine of the connection", file: "node/readers.go", flags: shaped("slow reads"), seeds: 10,
		old: "\te.readers.read(int64(len(s.Data)), func() {", new: "\tif a.at == anywhere {\n\t\tn.storeDone(a, o, n.runOp(o, false))\n\t\treturn\n\t}\n\te.readers.read(int64(len(s.Data)), func() {"},
	{player: nodes, rule: "R12", name: "mirrored writes run on the goroutine that reads the link", file: "node/lane.go", flags: shaped("slow reads"), seeds: 10,
		old: "case small && (a.at == anywhere || f == nil):", new: "case small:"},
	{player: nodes, rule: "R12", name: "a mirrored write that reads first runs on the goroutine that reads the link", file: "node/lane.go", flags: shaped("slow reads"), seeds: 10,
		old: "\tcase small && e != nil && !f.Prompt(msg.Off, msg.Len):", new: "\tcase small && a.at == onLink && !f.Prompt(msg.Off, msg.Len):\n\t\tn.peer.applies.Add()\n\t\tn.applied(a, link, msg, n.applyMsg(f, msg, durable))\n\t\tn.peer.applies.Done()\n\tcase small && e != nil && !f.Prompt(msg.Off, msg.Len):"},
	{player: nodes, rule: "R3", name: "the thread that keeps the lease touches the disk", file: "node/tick.go", flags: shaped("busy disks"), seeds: 10,
		old: "\t\tn.run.lastTick.Store(now)\n", new: "\t\tn.run.lastTick.Store(now)\n\t\t_ = n.store.Default().Probe()\n"},
	{player: nodes, rule: "R13", name: "a LUN without space for its file ends its node", file: "node/publish.go", flags: shaped("full disks"), seeds: 10,
		old: "(errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrNoSpace))", new: "false"},
	{player: nodes, rule: "R13", name: "a node without room for one more file does not start", file: "store/fsutil.go", flags: shaped("full disks"), seeds: 20,
		old: "\tif noSpace(err) {\n\t\treturn fd.With(", new: "\tif false {\n\t\treturn fd.With("},
	{player: nodes, rule: "R12", name: "a node that has left does not end its process", file: "node/leave.go", flags: shaped("disk fails"), seeds: 10,
		old: "why != \"\" && ctx.Err() == nil {", new: "why != \"\" && ctx.Err() == nil && n.run.stopping.Load() {"},
	{player: nodes, rule: "R10", name: "an orderly stop waits for a transfer that cannot end", file: "node/stop.go", flags: shaped("stops"), seeds: 20,
		old: "\tcase <-ctx.Done():\n\t\treturn ctx.Err()\n", new: "\tcase <-n.run.ctx.Done():\n\t\treturn ctx.Err()\n"},
	{player: nodes, rule: "R1", name: "an orderly stop does not end held commands", file: "node/stop.go", flags: shaped("held stops"), seeds: 20,
		old: "waiting(n.Waiting()))\n\t\tn.stepDown()\n", new: "waiting(n.Waiting()))\n"},
	{player: nodes, rule: "R11a", name: "a sign of life counts from its arrival", file: "iscsi/ping.go", flags: shaped("strays"), seeds: 60,
		old: "c.nexus.Liveness.Answered(at)", new: "c.nexus.Liveness.Answered(c.srv.cfg.Clock() + at - at)"},
}
