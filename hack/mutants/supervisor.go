package main

// ofSupervisor is the hazard of mutants of supervisors, and of how an initiator leaves a silent
// node.
const ofSupervisor = -6

func init() { mutants = append(mutants, supervisorMutants...) }

var supervisorMutants = []mutant{
	{ofSupervisor, "a process is reported when it starts", below("dataplane/supervise/supervise.go",
		"		state, err := c.live(", "		t.ended(pair.Incarnation{Boot: c.Boot, Nonce: life.Nonce})\n		state, err := c.live("), "dataplane/supervise", "TestReportsWhatItHasReaped"},
	{ofSupervisor, "two processes get the same nonce", below("dataplane/supervise/supervise.go",
		"life.Nonce, life.Blames = rand.Uint64()|1, t.blames.now()", "life.Nonce, life.Blames = max(life.Nonce, 1), t.blames.now()\n		_ = rand.Uint64"), "dataplane/supervise", "TestReportsWhatItHasReaped"},
	{ofSupervisor, "a process outlives its supervisor", append(below("dataplane/supervise/supervise.go",
		"	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}\n", ""), below("dataplane/supervise/life.go",
		"		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)\n", "		_ = syscall.SIGKILL\n")...), "dataplane/supervise", "TestTheProcessEndsWithItsSupervisor"},
	{ofSupervisor, "every certificate of the authority is good enough", below("dataplane/supervise/testify.go",
		"t.c.TLS.Server(pki.RequireURI(pki.TargetURI(t.c.Cluster, t.c.Pair, partner.Peer().String())))", "t.c.TLS.Server(func(tls.ConnectionState) error { _ = partner; _ = pki.RequireURI; return nil })"), "dataplane/supervise", "TestCertificates"},
	{ofSupervisor, "a report about another node is believed", below("dataplane/supervise/follow.go",
		"r.Cluster != f.Cluster || r.Pair != f.Pair || r.Node != f.Node", "r.Cluster != f.Cluster || r.Pair != f.Pair"), "dataplane/supervise", "TestWhoIsBelieved"},
	{ofSupervisor, "a silent session is given up although no node has taken over", below("initiator/silent.go",
		"q.view.state == alua.Optimized && q.rose > heard", "q.view.state == alua.Optimized || heard > 0"), "initiator", "TestSilentNodeIsGivenItsTime"},
	{ofSupervisor, "a silent session is given its time although its partner serves", below("initiator/silent.go",
		"	if replaced {", "	if replaced && false {"), "initiator", "TestSilentNodeIsLeftForItsPartner"},
	{ofSupervisor, "a blame is not told to the next process", below("dataplane/supervise/supervise.go",
		"life.Nonce, life.Blames = rand.Uint64()|1, t.blames.now()", "life.Nonce = rand.Uint64() | 1"), "dataplane/supervise", "TestBlamesReachBothNodes"},
	{ofSupervisor, "a blame is not told to the partner", below("dataplane/supervise/testify.go",
		"slices.Clone(t.list), t.blames.now()}", "slices.Clone(t.list), nil}"), "dataplane/supervise", "TestBlamesReachBothNodes"},
	{ofSupervisor, "a blame is kept when it is forgiven", below("dataplane/supervise/blame.go",
		"			b.forgive(n.Forgive)\n", ""), "dataplane/supervise", "TestForgivenBlamesAreNotTold"},
	{ofSupervisor, "one process is enough for a quarantine", below("dataplane/node/quarantine.go",
		"		if slices.ContainsFunc(q.blames, func(o blamed) bool { return o.LUN == b.LUN && o.Nonce == b.Nonce }) {\n			continue\n		}\n", ""), "dataplane/node", "TestWhichLUNIsRefused"},
	{ofSupervisor, "processes of any time make a quarantine", below("dataplane/node/quarantine.go",
		" && max(o.at-x.at, x.at-o.at) <= int64(blameWindow)", ""), "dataplane/node", "TestWhichLUNIsRefused"},
	{ofSupervisor, "what was forgiven counts again", below("dataplane/node/quarantine.go",
		"ok && x.at <= when", "ok && x.at < 0 && when < 0"), "dataplane/node", "TestForgivenBlamesDoNotCount"},
	{ofSupervisor, "a quarantined LUN executes commands", below("dataplane/scsi/server.go",
		"c.flags&anyAccess == 0 && t.unit.quarantined.Load()", "c.flags&anyAccess == 0 && t.unit == nil"), "dataplane/scsi", "TestQuarantinedUnit"},
	{ofSupervisor, "a node that has just crashed gets LUNs", inBalance("balancer.go",
		" || v.Nodes[to].Crashed {", " {"), balance, "TestNothingMovesToANodeThatHasJustCrashed"},
	{ofSupervisor, "a silent session hears of a takeover at its next turn only", below("initiator/multipath.go",
		"		p.tookOver()\n", ""), "initiator", "TestTakeoverIsNoticedAtOnce"},
	{ofSupervisor, "a partner under load is asked as often as an idle one", below("initiator/silent.go",
		"		if now >= q.askAt {", "		if now >= q.askAt || q.asking > 0 {"), "initiator", "TestSlowPartnerIsAskedLess"},
	{ofSupervisor, "a node acts on silence at its next turn only", below("dataplane/pair/silence.go",
		"	return m.excl.until\n", "	return m.excl.until + int64(m.cfg.Polite)\n"), "dataplane/pair", "TestDeadlineIsTheMomentToAct"},
	{ofSupervisor, "a silence is flushed for again and again", below("dataplane/node/tick.go",
		"	f.begun = true\n", ""), "dataplane/node", "TestSilenceFlushesAhead"},
}
