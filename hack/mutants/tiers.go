package main

import "github.com/gemel-storage/gemel/internal/testkit/mutate"

// ofTiers is the hazard of mutants of the policy that arranges the tiers of a pool.
const ofTiers = -7

const tiers = "dataplane/tiering"

func inTiers(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: tiers + "/" + file, Old: old, New: new}}
}

// inTarget are mistakes of how a node uses the policy.
func inTarget(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: ofNode + "/" + file, Old: old, New: new}}
}

var tierMutants = []mutant{
	{ofTiers, "new data goes to the fast tier", inStore("placesopen.go",
		"		case p.Fast:\n			fast = append(fast, p.Number)\n", "		case p.Fast:\n			list = append(list, p.Number)\n"), ofStore, "TestNewDataGoesToCapacity"},
	{ofTiers, "a volume has a fast tier and nothing else", inStore("tier.go",
		"case t.Fast && !slices.ContainsFunc(", "case false && !slices.ContainsFunc("), ofStore, "TestCheckTiers"},
	{ofTiers, "the owner keeps what it knows of reads to itself", inTarget("tiers.go",
		"	n.sendHints(hints)\n", ""), ofNode, "TestTiersArrangeThemselves"},
	{ofTiers, "what the other node says is counted by nobody", inTarget("tiers.go",
		"			l.Counts = append(l.Counts, t.hints[e.lun.UUID]...)\n", "			_ = l.Counts\n"), ofNode, "TestTiersArrangeThemselves"},
	{ofTiers, "reads are not counted", inTarget("readers.go",
		"		e.tier.read(s.Off, s.Len)\n", ""), ofNode, "TestTiersArrangeThemselves"},
	{ofTiers, "observe moves", inTarget("tiers.go",
		"if n.tiers.mode == balance.Observe {", "if false {"), ofNode, "TestTieringIsObserved"},
	{ofTiers, "observe says the same in every round", inTarget("tiers.go",
		"	if m.observed && slices", "	if false && slices"), ofNode, "TestTieringIsObserved"},
	{ofTiers, "a pin is not followed", inTarget("tiers.go",
		"Pin: pinOf(e.lun.Tier), Place", "Place"), ofNode, "TestTiersArrangeThemselves"},
	{ofTiers, "a pin is accepted that the other node cannot follow", inTarget("tierpins.go",
		"	case err == nil || errors.Is(err, meta.ErrInvalid):\n		return err\n", "	case err == nil || errors.Is(err, meta.ErrInvalid):\n		return nil\n"), ofNode, "TestPinNeedsTiersAtBothNodes"},
	{ofTiers, "a slow member is not named", inTarget("tierspeeds.go",
		"took > unlike*other {", "took > 1000*other {"), ofNode, "TestMembersThatDifferAreNamed"},
	{ofTiers, "a release before gets pins to tiers", []mutate.Edit{{File: "dataplane/meta/ownership.go",
		Old: "l.Hold, l.Pin, l.Tier, l.Group, l.Quarantine = nil, \"\", \"\", \"\", \"\"", New: "l.Hold, l.Pin, l.Group, l.Quarantine = nil, \"\", \"\", \"\""}}, "dataplane/meta", "TestStateForReleaseBefore"},
	{ofTiers, "hints have no bound", inTarget("tierhints.go",
		"len(list) < hintsMost {", "true {"), ofNode, "TestHintsAreBounded"},
	{ofTiers, "an extent takes the place of one that is nearly as hot", inTiers("types.go",
		"	Gain = 2", "	Gain = 0.5"), tiers, "TestEvenlyWarmSetStays"},
	{ofTiers, "chance is taken for heat", inTiers("types.go",
		"	sure = 4", "	sure = 0.01"), tiers, "TestEvenlyWarmSetStays"},
	{ofTiers, "what was hot for hours is hot", inTiers("rates.go",
		"		return lowSoon, highSoon", "		return lowLater, highLater"), tiers, "TestNewHotSetTakesOver"},
	{ofTiers, "what is seldom used is moved", inTiers("lessons.go",
		"	return l.need() / Horizon.Seconds()", "	return 0"), tiers, "TestSeldomUsedExtentsStay"},
	{ofTiers, "moves that do not pay teach nothing", inTiers("lessons.go",
		"	if !paid {", "	if false {"), tiers, "TestMovesThatDoNotPayTeachPatience"},
	{ofTiers, "a wait is never shortened", inTiers("lessons.go",
		"	case l.failed < few && l.wait > 0:", "	case false:"), tiers, "TestMovesThatDoNotPayTeachPatience"},
	{ofTiers, "an extent that has been hot before need not wait", inTiers("policy.go",
		"					r.hotFrom[e] = 0\n					continue", "					continue"), tiers, "TestWaitBeginsAgain"},
	{ofTiers, "equally fast tiers exchange extents", inTiers("lessons.go",
		"	if l.cfg.Saved <= 0 {", "	if false {"), tiers, "TestEqualTiersMoveNothingButPins"},
	{ofTiers, "what is pinned to Fast is displaced", inTiers("policy.go",
		"} else if l.Pin == Unpinned {", "} else {"), tiers, "TestPinsAreFollowed"},
	{ofTiers, "a LUN that is pinned to Capacity is moved for heat", inTiers("policy.go",
		"case at == Capacity && l.Pin == Unpinned && (r", "case at == Capacity && (r"), tiers, "TestPinsAreFollowed"},
	{ofTiers, "a pin waits for room", inTiers("policy.go",
		"(d.left() < 2 || !d.demote(s, ReasonMakeRoom))", "true"), tiers, "TestPinsAreFollowed"},
	{ofTiers, "a shared extent moves to Fast", inTiers("policy.go",
		"		if c.lun.Fixed != nil && c.lun.Fixed(c.key.extent) {", "		if false {"), tiers, "TestFixedExtentsStay"},
	{ofTiers, "a shared extent makes room", inTiers("policy.go",
		"if c := &s.cold[0]; c.lun.Fixed == nil || !c.lun.Fixed(c.key.extent) {", "if c := &s.cold[0]; true {"), tiers, "TestFixedExtentsStay"},
	{ofTiers, "nothing of Fast is kept free", inTiers("policy.go",
		"	return max(int(float64(room)*reserveShare), 1)", "	return 0"), tiers, "TestReserveIsFreed"},
	{ofTiers, "scans heat", inTiers("counters.go",
		" || c.follows(off, n) {", " {"), tiers, "TestScanDoesNotHeat"},
	{ofTiers, "random reads end a scan", inTiers("counters.go",
		"		if !s.goesOn.Swap(false) {", "		if true {"), tiers, "TestScanDoesNotHeat"},
	{ofTiers, "what is read near the end of a sequence never counts", inTiers("counters.go",
		" && s.late.Add(1) <= lates:", ":"), tiers, "TestEndOfASequenceHeats"},
	{ofTiers, "a short sequence is a scan", inTiers("counters.go",
		"	sequence = 512 << 10", "	sequence = 8 << 10"), tiers, "TestSmallHotRangeHeats"},
	{ofTiers, "a drain fills a volume to the last byte", inTiers("capacity.go",
		"return max(int64(mostFull*float64(v.Total))-v.used(), 0)", "return v.Free"), tiers, "TestDrainEmptiesAVolume"},
	{ofTiers, "a volume that is drained is filled", inTiers("capacity.go",
		"v.Tier == t && !v.Draining && v.Total > 0", "v.Tier == t && v.Total > 0"), tiers, "TestFlowsOfAnyPool"},
	{ofTiers, "volumes are made even for any difference", inTiers("capacity.go",
		"	case most-least > unevenStart, most", "	case most-least > 0, most"), tiers, "TestEvenEnough"},
	{ofTiers, "a volume is filled above what the others have", inTiers("capacity.go",
		"		n := min(give, take)", "		n := give"), tiers, "TestNewVolumeIsFilled"},
	{ofTiers, "a drain stops where its tier is full", inTiers("capacity.go",
		"for _, same := range []bool{true, false} {", "for _, same := range []bool{true} {"), tiers, "TestDrainEmptiesAVolume"},
}

func init() { mutants = append(mutants, tierMutants...) }
