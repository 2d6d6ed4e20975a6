package main

// ofSpread is the hazard of mutants that are about no worker: of the spread of consistency groups.
const ofSpread = -2

const (
	spread  = "placement"
	grouped = "controllers/consistencygroup"
)

var spreadMutants = []mutant{
	{ofSpread, "a pinned member is moved", below("placement/spread.go",
		`m.Home == from && m.Fixed == ""`, `m.Home == from`), spread, "TestEvenOutPropertiesForRandomMembers"},
	{ofSpread, "a pinned member does not count", below("placement/spread.go",
		"if m.Home != nodeA && m.Home != nodeB {", `if m.Fixed != "" {`), spread, "TestEvenOut"},
	{ofSpread, "more members move than have to", below("placement/spread.go",
		"min(len(can), c.apart()/2)", "min(len(can), (c.apart()+1)/2)"), spread, "TestEvenOutPropertiesForRandomMembers"},
	{ofSpread, "the order of the members decides", below("placement/spread.go",
		"cmp.Compare(y.Name, x.Name))", "0)"), spread, "TestEvenOutPropertiesForRandomMembers"},
	{ofSpread, "nearness comes before spread", below("placement/spread.go",
		"	case c.A != c.B:\n", "	case c.A != c.B && near == \"\":\n"), spread, "TestChooseForAGroup"},
	{ofSpread, "members gather on a pair that is nearly full", below("placement/spread.go",
		"first(a.keepsReserve(req), b.keepsReserve(req))", "0"), spread, "TestChooseForAGroup"},
	{ofSpread, "the home of a member always follows its pod", below("controllers/logicalunit/nearness.go",
		`node != "" && p.staysSpread(ctx, node)`, `node != ""`), "controllers/logicalunit", "TestHomeOfAMemberFollowsItsHost"},
	{ofSpread, "members that are placed at once do not count each other", below("controllers/logicalunit/group.go",
		"r.with(key, groups.Members(claims, now), claim, now)", "groups.Members(claims, now)"), "controllers/logicalunit", "TestMembersThatArePlacedAtOnceAreSpread"},
	{ofSpread, "spread None moves LUNs", below(grouped+"/reconciler.go",
		"problem == nil && g.Spec.Spread != v1alpha1.SpreadNone", "problem == nil"), grouped, "TestWhatAGroupNeverMoves"},
	{ofSpread, "a LUN moves while its pair is not in sync", below(grouped+"/evenout.go",
		"	case !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionInSync):\n		return \"its nodes are not in sync\"\n", "	case !meta.IsStatusConditionTrue(p.Status.Conditions, \"\") && false:\n"), grouped, "TestGroupWaits"},
	{ofSpread, "several members move at once", below(grouped+"/evenout.go",
		"if x.Owner != x.Home && m.Owner != m.To {", "if false {"), grouped, "TestGroupIsEvenedOutOneByOne"},
	{ofSpread, "a home is set again after a restart", below(grouped+"/evenout.go",
		"	case now.PreferredNode == m.To:\n		r.remember(lu, m.To)\n		return \"\" // before a restart\n	case now.PreferredNode != m.Home:\n", "	case now.PreferredNode == \"\":\n"), grouped, "TestCrashAfterAHomeWasSet"},
	{ofSpread, "the pair does not get the group of a LUN", below("controllers/logicalunit/modify.go",
		"errors.Join(p.pin(ctx), p.pinTier(ctx), p.spread(ctx))", "errors.Join(p.pin(ctx), p.pinTier(ctx))"), "controllers/logicalunit", "TestPairKnowsTheGroup"},
	{ofSpread, "a LUN leaves its group when the group cannot be read", below("controllers/logicalunit/modify.go",
		"	if !known {\n", "	if !known && g != nil {\n"), "controllers/logicalunit", "TestPairKnowsTheGroup"},
	{ofSpread, "the chair does not see groups", below("dataplane/node/look.go",
		"Group: l.Group, Volume", "Volume"), "dataplane/node", "TestChairSeesPinsAndHolds"},
	{ofSpread, "a group goes into the log of a mixed pair", below("dataplane/node/modify.go",
		"n.bothKnow(errNoSpread)", "n.bothKnow(nil)"), "dataplane/node", "TestPinInAMixedPair"},
	{ofSpread, "a release before gets groups", below("dataplane/meta/ownership.go",
		"l.Hold, l.Pin, l.Tier, l.Group, l.Quarantine = nil, \"\", \"\", \"\", \"\"", "l.Hold, l.Pin, l.Tier, l.Quarantine = nil, \"\", \"\", \"\""), "dataplane/meta", "TestStateForReleaseBefore"},
	{ofSpread, "what is taken back gathers a group", inBalance("even.go",
		"if !spreads(append(set, c), c) {", "if false {"), balance, "TestTakingBackKeepsGroupsSpread"},
	{ofSpread, "a claim of two groups is a member of both", below(grouped+"/view.go",
		"	if f := v.conflict(g); f != nil {\n		return f, \"\"\n	}\n", ""), grouped, "TestClaimOfTwoGroups"},
	{ofSpread, "an empty selector selects everything", below("controllers/internal/groups/groups.go",
		"	if s.Empty() {\n", "	if s == nil {\n"), "controllers/internal/groups", "TestSelectorHasToSelectSomething"},
	{ofSpread, "the LUN of an earlier claim of the same name is a member", below("controllers/internal/groups/cache.go",
		`uid != "" && strings.HasSuffix(lu.Spec.Volume.Name, string(uid))`, `uid != "" && strings.HasPrefix(lu.Spec.Volume.Name, "pvc-")`), "controllers/internal/groups", "TestClaimsOfAGroup"},
}

func init() { mutants = append(mutants, spreadMutants...) }
