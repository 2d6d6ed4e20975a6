package main

// ofStriped is the hazard of mutants of striped volumes.
const ofStriped = -4

const (
	striped    = "initiator/striped"
	holderFile = "csi/attach/userspace/holder/legs.go"
	ofVolume   = "test/integration/striped"

	reconcilesLUNs = "controllers/logicalunit"
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
}

func init() { mutants = append(mutants, stripedMutants...) }
