package main

// ofStriped is the hazard of mutants of striped volumes.
const ofStriped = -4

const (
	striped    = "initiator/striped"
	holderFile = "csi/attach/userspace/holder/legs.go"
	ofVolume   = "test/integration/striped"

	reconcilesLUNs = "controllers/logicalunit"
	takesSnapshots = "controllers/snapshot"
	takesGroups    = "controllers/groupsnapshot"
)

var stripedMutants = []mutant{
	{ofStriped, "a part of a leg goes to the stripe before", below("internal/stripe/stripe.go",
		"k/int64(l.Count)*l.Size + in, at, size}", "(k-k%2)/int64(l.Count)*l.Size + in, at, size}"), "internal/stripe", "TestPartsAndSpans"},
	{ofStriped, "a range without data ends with its last stripe", below("internal/stripe/stripe.go",
		"		if b == last {\n			end -= l.Size - 1 - (off+n-1)%l.Size\n		}\n", ""), "internal/stripe", "TestPartsAndSpans"},
	{ofStriped, "any size of a volume divides", below("internal/stripe/stripe.go",
		"volume <= 0 || volume%row != 0", "volume <= 0 || row == 0"), "internal/stripe", "TestSizes"},
	{ofStriped, "a volume grows with the first of its legs", below(striped+"/volume.go",
		"least = min(least, l.Size())", "least = max(least, l.Size())"), striped, "TestExpansion"},
	{ofStriped, "a flush reaches one leg", below(striped+"/volume.go",
		"v.each(func(l Leg) error { return l.Flush(ctx) })", "v.legs[0].Flush(ctx)"), striped, "TestFlushReachesAllLegs"},
	{ofStriped, "a request returns before all of its parts have ended", below(striped+"/volume.go",
		"	wg.Wait()\n	first", "	if errs[0] == nil {\n		wg.Wait()\n	}\n	first"), striped, "TestRequestWaitsForAllLegs"},
	{ofStriped, "a volume lacks its last leg", below(striped+"/volume.go",
		"if len(legs) != layout.Count {", "if len(legs) > layout.Count {"), striped, "TestLegsMustFit"},
	{ofStriped, "an older node plugin takes one LUN for the volume", below("csi/attach/attach.go",
		"		delete(m, KeyLUN)\n		delete(m, KeyWWID)\n", ""), "csi/attach", "TestPublishContextOfStripedVolume"},
	{ofStriped, "one LUN is two legs", below("csi/attach/legs.go",
		"case seen[number] || seen[wwid]:", "case false:"), "csi/attach", "TestBadPublishContextOfStripedVolume"},
	{ofStriped, "another order of the legs is the same attachment", below("csi/attach/attach.go",
		"a.Stripe == b.Stripe && slices.Equal(a.Legs, b.Legs)", "a.Stripe == b.Stripe && len(a.Legs) == len(b.Legs)"), "csi/attach", "TestPublishContextOfStripedVolume"},
	{ofStriped, "a leg is not verified", below("csi/attach/userspace/holder/holder.go",
		"LUN: l.LUN, WWID: l.WWID,", "LUN: l.LUN,"), ofVolume, "TestLegThatIsMissingOrAnother"},
	{ofStriped, "a volume that lacks a LUN does not say so", below(holderFile,
		"slices.ContainsFunc(l, (*initiator.Device).NoUnit)", "len(l) == 1 && l[0].NoUnit()"), ofVolume, "TestLegIsTakenAway"},
	{ofStriped, "a host is fenced when one leg has fenced it", below(reconcilesLUNs+"/stripedstatus.go",
		"		m := l.Status.Host(iqn)\n		if m == nil {\n			whole = false\n			continue\n		}\n", "		m := l.Status.Host(iqn)\n		if m == nil {\n			return out, false\n		}\n"), reconcilesLUNs, "TestHostsOfStripedVolume"},
	{ofStriped, "a host is published when it reaches one leg", below(reconcilesLUNs+"/stripedstatus.go",
		"		if m == nil {\n			whole = false\n			continue", "		if m == nil {\n			continue"), reconcilesLUNs, "TestHostsOfStripedVolume"},
	{ofStriped, "what a leg said of an earlier spec counts", below(reconcilesLUNs+"/stripedstatus.go",
		"return l.Status.ObservedGeneration != l.Generation })\n}", "return l.Status.ObservedGeneration > l.Generation })\n}"), reconcilesLUNs, "TestHostsOfStripedVolume"},
	{ofStriped, "a volume takes over the legs of an earlier one", below(reconcilesLUNs+"/striped.go",
		"l.Of != p.lu.Name || l.UUID != p.lu.Spec.Placement.UUID {", "l.Of != p.lu.Name {"), reconcilesLUNs, "TestEndOfStripedVolume"},
	{ofStriped, "a volume is made when its first leg is", below(reconcilesLUNs+"/striped.go",
		"made = made && object.IsMade(p.legs[i])", "made = object.IsMade(p.legs[0])"), reconcilesLUNs, "TestStripedVolumeSumsUpItsLegs"},
	{ofStriped, "a volume goes before its legs", below(reconcilesLUNs+"/striped.go",
		"	if len(left) > 0 {\n		return finding", "	if len(left) > 16 {\n		return finding"), reconcilesLUNs, "TestEndOfStripedVolume"},
	{ofStriped, "all legs have one home", below(reconcilesLUNs+"/striped.go",
		"homes[(int(l.Number)+slices", "homes[(0*int(l.Number)+slices"), reconcilesLUNs, "TestHomesOfLegs"},
	{ofStriped, "a striped volume may be used by several workers", below("csi/controller/striped.go",
		"		if a.MultiNode() {", "		if a.MultiNode() && a.Block == (a.FSType != \"\") {"), "csi/controller", "TestWhatCannotBeStriped"},
	{ofStriped, "the kernel attaches the first LUN of a striped volume", below("csi/attach/kernel/identity.go",
		"	if a.Striped() {", "	if a.Striped() && a.WWID != \"\" {"), "csi/attach/kernel", "TestStripedVolumeIsRefused"},
	{ofStriped, "the first leg is taken for the volume", below(takesGroups+"/legs.go",
		"range int(s.Spec.Striped.LUNs)", "range 1 + 0*int(s.Spec.Striped.LUNs)"), takesGroups, "TestLegsAreTaken"},
	{ofStriped, "a leg that was taken before is one of this cut", below(takesGroups+"/legs.go",
		"case object.IsMade(have):", "case object.IsMade(have) && have.Spec.Destroy:"), takesGroups, "TestForeignLeg"},
	{ofStriped, "legs do not count for the limit of a cut", below(takesGroups+"/legs.go",
		"n := len(p.luns); n >", "n := len(p.members); n >"), takesGroups, "TestTooManyLegs"},
	{ofStriped, "legs that were begun are not ended at their pairs", below(takesGroups+"/destroy.go",
		"if leg != nil && snapshot.IsLeg(s, leg) {", "if leg == nil && snapshot.IsLeg(s, s) {"), takesGroups, "TestEndOfLegs"},
	{ofStriped, "a snapshot is made when its first leg is", below(takesSnapshots+"/striped.go",
		"	for i, leg := range p.legs {\n		switch {\n		case leg == nil && p.made()", "	for i, leg := range p.legs[:1] {\n		switch {\n		case leg == nil && p.made()"), takesSnapshots, "TestSnapshotOfStripedVolumeSumsUpItsLegs"},
	{ofStriped, "a leg of an earlier snapshot counts", below(takesSnapshots+"/striped.go",
		"l.Of == whole.Name && l.UUID == at.UUID", "l.Of == whole.Name"), takesSnapshots, "TestEndOfSnapshotOfStripedVolume"},
	{ofStriped, "a snapshot goes before its legs", below(takesSnapshots+"/striped.go",
		"	if len(left) > 0 {", "	if len(left) > 16 {"), takesSnapshots, "TestEndOfSnapshotOfStripedVolume"},
	{ofStriped, "a leg of a snapshot is destroyed by itself", below(takesSnapshots+"/group.go",
		"return m.Snapshot == l.Of", "return m.Snapshot == l.UUID"), takesSnapshots, "TestEndOfSnapshotOfStripedVolume"},
	{ofStriped, "one leg of a volume is taken by itself", below(takesSnapshots+"/striped.go",
		"case leg == nil && lu.Spec.Leg != nil:", "case leg == nil && lu.Spec.Leg != nil && lu.Spec.Destroy:"), takesSnapshots, "TestStripedVolumeIsNotTakenByItself"},
	{ofStriped, "a leg is restored from another leg", below(reconcilesLUNs+"/stripedcopy.go",
		"v1alpha1.LegName(p.lu.Spec.Source.Snapshot, i)", "v1alpha1.LegName(p.lu.Spec.Source.Snapshot, 0*i)"), reconcilesLUNs, "TestStripedVolumeIsRestored"},
	{ofStriped, "a copy has stripes of another size", below(reconcilesLUNs+"/stripedcopy.go",
		"*striped != *p.lu.Spec.Striped:", "striped.LUNs != p.lu.Spec.Striped.LUNs:"), reconcilesLUNs, "TestCopyHasTheLayoutOfItsSource"},
	{ofStriped, "a clone does not wait for the snapshot of its source", below(reconcilesLUNs+"/stripedcopy.go",
		"	case object.IsMade(g):", "	case g.Name != \"\":"), reconcilesLUNs, "TestStripedVolumeIsCloned"},
	{ofStriped, "the snapshot that a clone was made from stays", below(reconcilesLUNs+"/striped.go",
		"	if p.made() {\n		_, err", "	if p.made() && p.deleted() {\n		_, err"), reconcilesLUNs, "TestStripedVolumeIsCloned"},
	{ofStriped, "a clone removes a snapshot that is not its own", below(reconcilesLUNs+"/stripedcopy.go",
		"return g.Labels[v1alpha1.LabelClone] == p.lu.Spec.Placement.UUID", "return g.Labels[v1alpha1.LabelClone] == p.lu.Spec.Placement.UUID || g.Name == p.lu.Name"), reconcilesLUNs, "TestCloneIsGivenUp"},
}

func init() { mutants = append(mutants, stripedMutants...) }
