package main

import "github.com/gemel-storage/gemel/internal/testkit/mutate"

// balance is the package of the policy that moves ownership.
const balance = "dataplane/balance"

func inBalance(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: balance + "/" + file, Old: old, New: new}}
}

// ownership are the mutants of the policy that moves ownership. They belong to no hazard on
// workers.
var ownership = []mutant{
	{0, "a LUN is moved to a node that may not own it", inBalance("balancer.go",
		"return n != None && v.Nodes[n].Member && !v.Nodes[n].Drained", "return n != None"), balance, "TestNothingMovesToANodeThatMayNotOwn"},
	{0, "a pin is only a wish", inBalance("balancer.go",
		"case l.Pin == to:", "case l.Pin == to && l.Held == 0:"), balance, "TestPinComesFirst"},
	{0, "a pinned LUN is balanced", inBalance("even.go",
		"if l.Owner == None || l.Pin != None || l.Home", "if l.Owner == None || l.Home"), balance, "TestCalm"},
	{0, "a LUN goes home at once", inBalance("balancer.go",
		"v.Now-max(v.Nodes[l.Home].Since, b.start) < delay", "false"), balance, "TestFailBackWaitsForTheDelay"},
	{0, "a new chair takes what it sees for old", inBalance("balancer.go",
		"max(v.Nodes[l.Home].Since, b.start)", "v.Nodes[l.Home].Since"), balance, "TestNewChairBeginsEveryDelayAgain"},
	{0, "a LUN goes home although not all of its hosts are back", inBalance("balancer.go",
		"			return b.probe(v, l, m, mv)", "			continue"), balance, "TestHostsThatArePartlyBackKeepTheirLUN"},
	{0, "every idle LUN is a probe", inBalance("balancer.go",
		"if b.probes > 0 {", "if false {"), balance, "TestOneIdleLUNGoesHomeAsAProbe"},
	{0, "a move of an administrator is taken back", inBalance("balancer.go",
		"if m.resting(v.Now) || v.Now < l.Held {", "if m.resting(v.Now) {"), balance, "TestAPersonsMoveHolds"},
	{0, "observing moves LUNs", inBalance("balancer.go",
		"m.Dry = b.policy.Mode != Auto &&", "m.Dry = false &&"), balance, "TestObserveSaysAndDoesNothing"},
	{0, "connectivity sets home", inBalance("connectivity.go",
		"		mv.Reason = ReasonConnectivity\n		mv.Text = fmt.Sprintf(\"all", "		mv.Reason, mv.SetsHome = ReasonConnectivity, true\n		mv.Text = fmt.Sprintf(\"all"), balance, "TestLUNFollowsItsHosts"},
	{0, "a host that only checks paths has a vote", inBalance("connectivity.go",
		"		if !h.Active {\n			continue\n		}\n		voters++", "		voters++"), balance, "TestHostThatOnlyChecksPathsHasNoVote"},
	{0, "a login that is replaced counts as a loss", inBalance("connectivity.go",
		"v.Now-h.Since[l.Owner] >= int64(lossTime) &&", "true &&"), balance, "TestLossThatDoesNotCount"},
	{0, "hosts that disagree move a LUN for any gain", inBalance("connectivity.go",
		"there > here/2", "there > here"), balance, "TestHostsThatDisagree"},
	{0, "flapping links move a LUN without a bound", inBalance("memory.go",
		"return len(m.moves) == MovesPerHour && now-m.moves[0] < int64(time.Hour)", "return false"), balance, "TestFlappingIsBounded"},
	{0, "a LUN rests no longer after a relapse", inBalance("memory.go",
		"if relapse && m.rest > 0 {", "if false {"), balance, "TestRestDoublesWithEachRelapse"},
	{0, "an idle pair is balanced", inBalance("even.go",
		"case loads[A] < p.Gate && loads[B] < p.Gate:", "case false:"), balance, "TestCalm"},
	{0, "a move need not pay", inBalance("even.go",
		"if left >= diff || c.gain < b.policy.ROI*cost {", "if left >= diff {"), balance, "TestCalm"},
	{0, "the members of a group come together", inBalance("even.go",
		"if !spreads(set, c) {", "if false {"), balance, "TestGroupsStaySpread"},
	{0, "a group counts its members before the move only", inBalance("even.go",
		"after := apart + change", "after := apart + 0*change"), balance, "TestGroupsStaySpread"},
	{0, "following continues although it does not pay", inBalance("promise.go",
		"r.burnt = r.paid > regretMax*whole || r.burnt && r.paid > regretOver*whole", "r.burnt = false && whole > 0"), balance, "TestFollowingThatDoesNotPayStops"},
	{0, "what another reason has moved is taken back", inBalance("memory.go",
		"		b.regret.belongs(mv.LUN, mv.To)\n", ""), balance, "TestOnlyBalancingIsTakenBack"},
	{0, "a late decision moves a LUN", below("dataplane/meta/ownership.go",
		"ok && seq != l.Seq {", "ok && seq == 0 {"), "dataplane/meta", "TestLateMoveDoesNothing"},
	{0, "a LUN moves to a node that is drained", below("dataplane/meta/ownership.go",
		"if !e.At.IsZero() && s.Drained(e.To, e.At) {", "if e.To == \"\" {"), "dataplane/meta", "TestNoLUNMovesToDrainedNode"},
	{0, "a drain never ends by itself", below("dataplane/meta/ownership.go",
		"return d != nil && d.Until.After(at)", "return d != nil"), "dataplane/meta", "TestNoLUNMovesToDrainedNode"},
	{0, "a failure moves the home", below("dataplane/meta/ownership.go",
		"e.Home && l.Preferred != e.To", "l.Preferred != e.To"), "dataplane/meta", "TestMoveSetsHome"},
	{0, "a drain moves the home", below("dataplane/node/drain.go",
		"return n.evacuate(ctx, node.Peer())", "return n.TransferAll(ctx, node.Peer())"), "dataplane/node", "TestDrainHoldsThroughRestart"},
	{0, "a drain is lost with the restart of a node", below("dataplane/node/metalog.go",
		"if !n.peerKnows(featureOwnership) {\n		s.Drain = nil", "if true {\n		s.Drain = nil"), "dataplane/node", "TestDrainHoldsThroughRestart"},
	{0, "a release before gets the drain", below("dataplane/node/metalog.go",
		"if !n.peerKnows(featureOwnership) {\n		s.Drain = nil", "if false {\n		s.Drain = nil"), "dataplane/node", "TestReleaseBeforeGetsNoDrain"},
	{0, "a transfer by a person does not move the home", below("dataplane/node/ops.go",
		"Home: n.peerKnows(featureOwnership)})", "Home: false})"), "dataplane/node", "TestTransferSetsHome"},
	{0, "a session is taken for the use of a path", below("dataplane/node/use.go",
		"if !s.UsesPath.IsZero() {", "if s.Initiator != \"\" {"), "dataplane/node", "TestSessionAloneShowsNoUse"},
	{0, "one command shows the use of a path", below("dataplane/scsi/evidence.go",
		"const enoughCommands = 2", "const enoughCommands = 1"), "dataplane/scsi", "TestTwoCommandsShowTheUseOfAPath"},
	{0, "a login that is replaced between two looks is not seen", below("dataplane/node/look.go",
		"case u.Uses: //", "case u.Uses && !s[i].uses: //"), "dataplane/node", "TestChairSeesSinceWhenHostUsesNode"},
	{0, "what came before a move is held against the owner", below("dataplane/node/look.go",
		"t == nil || t.owner != l.Owner {", "t == nil {"), "dataplane/node", "TestChairCountsTrafficOfThePresentOwnerOnly"},
	{0, "counters from before this chair count", below("dataplane/node/look.go",
		"ok && t.known[j] && reports", "ok && reports"), "dataplane/node", "TestChairCountsTrafficOfThePresentOwnerOnly"},
	{0, "a postponed move never holds for longer", below("dataplane/node/chair.go",
		"return min(calmHold<<min(tries, 8), transferHold)", "return min(calmHold<<min(tries, 0), transferHold)"), "dataplane/node", "TestPostponedMoveMayHoldLonger"},
	{0, "observing nodes move LUNs", below("dataplane/node/chair.go",
		"func(m balance.Move) bool { return m.Dry })", "func(m balance.Move) bool { return m.LUN == \"\" })"), "dataplane/node", "TestObserverMovesNothing"},
	{0, "work is counted where it was done", inWork("pair.go",
		"use[n] += s.Slow * smaller / r[n].CPUs", "use[0] += s.Slow * smaller / r[n].CPUs"), work, "TestUseFollowsTheOwner"},
	{0, "a write takes all of its work along", inWork("work.go",
		"l.avg[i].add((full-mirror)/dt", "l.avg[i].add(full/dt"), work, "TestWritesMoveInPart"},
	{0, "the other node's share of writes is taken for other work", inWork("pair.go",
		"model := r.Full + peer.Mirror", "model := r.Full + 0*peer.Mirror"), work, "TestMirroringIsNoWorkOfOwnLUNs"},
	{0, "what a process does beside commands is taken for their work", inWork("pair.go",
		"return min(max(r.CPU/model, scaleMin), scaleMax)", "return max(r.CPU/model, scaleMin)"), work, "TestScaleIsBounded"},
	{0, "work of nothing is scaled", inWork("pair.go",
		"if model < scaleFrom {", "if model < 0 {"), work, "TestScaleIsBounded"},
	{0, "averages begin with zeros", inWork("work.go",
		"return a.sum / w", "return a.sum"), work, "TestAveragesAreOfTheTimeThatWasSeen"},
	{0, "a command counts where it was forwarded", below("dataplane/count/count.go",
		"[]Way{Own, Remote}", "[]Way{Own, Forwarded, Remote}"), work, "TestForwardedCommandsAreWorkOfTheOwner"},
	{0, "what was counted before the first look is taken for recent", inWork("work.go",
		"			if !m.begun {\n				l.stamp", "			if false {\n				l.stamp"), work, "TestOnlyWhatIsNewCounts"},
	{0, "a node reports every LUN", inWork("work.go",
		"if len(names) > MaxLUNs {", "if len(names) > 1<<30 {"), work, "TestReportIsBounded"},
	{0, "work is evened while a scrub runs", below("dataplane/node/look.go",
		"stands != k.drained || reports[0].Work.Background || reports[1].Work.Background", "stands != k.drained"), "dataplane/node", "TestChairSeesDisturbances"},
	{0, "work is evened right after a drain", below("dataplane/node/look.go",
		"stands != k.drained || reports[0]", "reports[0]"), "dataplane/node", "TestChairSeesDisturbances"},
	{0, "a LUN that was moved for its work goes home again", below("dataplane/node/chair.go",
		"Home: batch[0].SetsHome", "Home: false"), "dataplane/nodesim", "TestTwoBusyLUNsPart"},
	{0, "the chair does not see the work of LUNs", below("dataplane/node/look.go",
		"u.Fast, u.Slow, u.Cold = s.Fast, s.Slow,", "u.Fast, u.Slow, u.Cold = 0*s.Fast, 0*s.Slow,"), "dataplane/nodesim", "TestTwoBusyLUNsPart"},
}

// work is the package that turns what is counted into work.
const work = "dataplane/work"

func inWork(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: work + "/" + file, Old: old, New: new}}
}

func below(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: file, Old: old, New: new}}
}

func init() { mutants = append(mutants, ownership...) }
