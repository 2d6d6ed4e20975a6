package main

import "github.com/gemel-storage/gemel/internal/testkit/mutate"

// ofMembers is the hazard of mutants of backing volumes that have members.
const ofMembers = -9

const (
	ofStore = "dataplane/store"
	ofNode  = "dataplane/node"
)

const ofPair = "controllers/pair"

func inPair(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: ofPair + "/" + file, Old: old, New: new}}
}

func inStore(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: ofStore + "/" + file, Old: old, New: new}}
}

var memberMutants = []mutant{
	{ofMembers, "a member that is another one is taken", inStore("member.go",
		"		case r.ID == x.id:\n", "		case true:\n"), ofStore, "TestMemberThatIsReplaced"},
	{ofMembers, "what was on a lost member reads as zero", inStore("admit.go",
		"			if at.Names(m.number) {\n", "			if at.Names(m.number) && false {\n"), ofStore, "TestMemberThatIsReplaced"},
	{ofMembers, "an image that was cut reads as zero", inStore("admit.go",
		"		case x.Size() < st.Size():", "		case false:"), ofStore, "TestPartsThatAreGone"},
	{ofMembers, "a LUN whose map is lost is taken for whole", inStore("admit.go",
		"		return \"its map of extents is missing\", nil\n", "		return \"\", extents.Create(v.mapPath(full), owner, v.rule(), st.Size())\n"), ofStore, "TestPartsThatAreGone"},
	{ofMembers, "a release that knows no members opens a volume that has some", inStore("member.go",
		"		if err := v.raiseFormat(); err != nil {\n			return err\n		}\n", ""), ofStore, "TestFirstMemberOfAVolumeWithLUNs"},
	{ofMembers, "a member that is drained gets new extents", inStore("placesopen.go",
		"		case p.Draining:\n", "		case false:\n"), ofStore, "TestMemberThatIsTakenAway"},
	{ofMembers, "a longer LUN has extents in a member that is drained", inStore("places.go",
		"	if err := p.avoid(from); err != nil {\n		return err\n	}\n", "	_ = from\n"), ofStore, "TestMemberThatIsTakenAway"},
	{ofMembers, "a member that is not empty is taken away", inStore("member.go",
		"			if left == \"\" {\n", "			if true {\n"), ofStore, "TestMemberThatIsTakenAway"},
	{ofMembers, "the last member is drained", inStore("moving.go",
		"	case on && !slices.ContainsFunc(list,", "	case false && !slices.ContainsFunc(list,"), ofStore, "TestMemberThatIsTakenAway"},
	{ofMembers, "a full member fills a LUN", inStore("spill.go",
		"	if !errors.Is(err, ErrNoSpace) || !f.Spread() {", "	if true {"), ofStore, "TestFullMemberSpills"},
	{ofMembers, "a durable write waits for the flush of another image", inStore("durable.go",
		"	d.put.join(d)\n", "	f.join(d)\n"), ofStore, "TestDurableWritesSurviveALossOfPower"},
	{ofMembers, "a durable write of an extent that moves is flushed at the old place only", []mutate.Edit{{File: extents + "/spread.go",
		Old: "	if b.moves[extent] != nil {\n		return false, nil\n	}\n	return true, fn(", New: "	return true, fn("}}, ofStore, "TestSpreadFileAgainstAModel"},
	{ofMembers, "a flush leaves members out", inStore("places.go",
		"	for i, x := range f.places.order {\n		wg.Go", "	for i, x := range f.places.order[:1] {\n		wg.Go"), ofStore, "TestFlushReachesAllPlaces"},
	{ofMembers, "a clone lies where the rule says, and not where its data is", inStore("clonespread.go",
		"c.rule, c.size, c.at)", "c.rule, c.size, nil)"), ofStore, "TestSnapshotOfASpreadLUN"},
	{ofMembers, "two members are drained at once", []mutate.Edit{{File: ofNode + "/mover.go",
		Old: "		if p.Draining && p.Name != member {", New: "		if false {"}}, ofNode, "TestDrainOfAMember"},
	{ofMembers, "a drain forgets snapshots", []mutate.Edit{{File: ofNode + "/families.go",
		Old: "x.Volume == name && f.Spread() {", New: "x.Volume == name && false {"}}, ofNode, "TestDrainOfAMember"},
	{ofMembers, "a LUN is shared with its copies only where its home can", inStore("copyrange.go",
		"	if f.places == nil {\n		return f.reflink\n	}\n	return f.places.lost == nil && slices.ContainsFunc(f.places.order, func(x *image) bool { return x.reflink })", "	_ = slices.Contains[[]int]\n	return f.reflink"), ofNode, "TestDrainKeepsSharing"},
	{ofMembers, "a drain unshares", []mutate.Edit{{File: ofNode + "/mover.go",
		Old: "n.moveOne(v, f, e, to, relative, drainRests)", New: "n.moveOne(v, f, e, to, nil, drainRests)"}, {File: ofNode + "/mover.go",
		Old: "			relative, to, ok := target(", New: "			_, to, ok := target("}}, ofNode, "TestDrainKeepsSharing"},
	{ofMembers, "a copy of a copy is of another family", []mutate.Edit{{File: ofNode + "/families.go",
		Old: "		id = from\n", New: "		return from\n"}}, ofNode, "TestFamilyOf"},
	{ofMembers, "a member that may have data is not mounted", inPair("members.go",
		"if !wanted[name] && claim", "if false && !wanted[name] && claim"), ofPair, "TestMemberComesAndGoes"},
	{ofMembers, "a member is taken away before it is empty", inPair("members.go",
		"at.Draining && at.ExtentsLeft == 0:", "at.Draining:"), ofPair, "TestMembersOfTiers"},
	{ofMembers, "a drain goes on although the spec has the member again", inPair("members.go",
		"			case x.left != at.Draining:", "			case x.left && !at.Draining:"), ofPair, "TestMemberComesAndGoes"},
	{ofMembers, "a node is not told which disk is lost", inPair("members.go",
		"		if x.lost != \"\" {", "		if false {"), ofPair, "TestLostMemberIsReplaced"},
	{ofMembers, "a pool's own volume is fast where it has no other", inPair("members.go",
		"pool.Tier == v1alpha1.TierFast && slices.ContainsFunc(m.members, slow)", "pool.Tier == v1alpha1.TierFast && (len(m.members) == 0 || slices.ContainsFunc(m.members, slow))"), ofPair, "TestMembersOfTiers"},
	{ofMembers, "a LUN that has lost a part is served", []mutate.Edit{{File: ofStore + "/objects.go",
		Old: "		x.Size = 0\n", New: "		x.Lost = \"\"\n"}}, ofNode, "TestLUNOverMembers"},
}

func init() { mutants = append(mutants, memberMutants...) }
