package main

import "github.com/gemel-storage/gemel/internal/testkit/mutate"

// ofGroups is the hazard of mutants that are about no worker: of the operator's part of group
// snapshots (docs/decisions/0072).
const ofGroups = -3

const (
	groupSnapshot  = "controllers/groupsnapshot"
	memberSnapshot = "controllers/snapshot"
)

func inGroup(file, old, new string) []mutate.Edit {
	return below(groupSnapshot+"/"+file, old, new)
}

var groupMutants = []mutant{
	{ofGroups, "an attempt begins that is not in the object", inGroup("take.go",
		"	if err := p.Status().Update(ctx, next, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {", "	if err := client.IgnoreNotFound(nil); err != nil {"), groupSnapshot, "TestAttemptIsWrittenBeforeItBegins"},
	{ofGroups, "the attempt of another coordinator is written over", inGroup("take.go",
		"	next := p.o.DeepCopy()\n", "	_ = p.Live.Get(ctx, client.ObjectKeyFromObject(p.o), p.o)\n	next := p.o.DeepCopy()\n"), groupSnapshot, "TestDeposedOperator"},
	{ofGroups, "an attempt is below that of a pair", inGroup("take.go",
		"max(p.o.Status.Attempt, int64(at)) + 1", "max(p.o.Status.Attempt, 0*int64(at)) + 1"), groupSnapshot, "TestAttemptIsWrittenBeforeItBegins"},
	{ofGroups, "a set that is whole is taken again", inGroup("take.go",
		"		if s.Whole { // of", "		if false { // of"), groupSnapshot, "TestAdoption"},
	{ofGroups, "a set is adopted that is not whole", inGroup("take.go",
		"		if s.Whole { // of", "		if s.Whole = s.Whole || s.Copying > 0; s.Whole { // of"), groupSnapshot, "TestAdoption"},
	{ofGroups, "a group is published before it is complete", inGroup("take.go",
		"		case s.Ready:", "		case s.Whole:"), groupSnapshot, "TestGroupIsPublishedWhenAllIsReady"},
	{ofGroups, "a deposed operator publishes", inGroup("take.go",
		"	if err := object.MarkMade(", "	_ = p.Live.Get(ctx, client.ObjectKeyFromObject(p.o), p.o)\n	if err := object.MarkMade("), groupSnapshot, "TestDeposedOperator"},
	{ofGroups, "a group that was taken is taken again", inGroup("reconciler.go",
		"	case p.made():\n		return p.check(ctx)\n", ""), groupSnapshot, "TestLostMemberIsNotTakenAgain"},
	{ofGroups, "a failure that no retry fixes leaves snapshots", inGroup("take.go",
		"			_ = p.group.Discard(ctx, attempt)", "			_ = attempt"), groupSnapshot, "TestFailuresAreExplained"},
	{ofGroups, "the objects go before the pairs have ended the group", inGroup("destroy.go",
		"	if err := p.end(ctx); err != nil {\n		return err\n	}\n", "	defer func() { _ = p.end(ctx) }()\n"), groupSnapshot, "TestPairsEndBeforeTheObjectsGo"},
	{ofGroups, "a group goes before its members", inGroup("destroy.go",
		"	if n := len(p.members); n > 0 {", "	if n := len(p.members); n > 9 {"), groupSnapshot, "TestPairsEndBeforeTheObjectsGo"},
	{ofGroups, "what has the name of a member is destroyed", inGroup("destroy.go",
		"		if s == nil || !p.belongs(m, s) {", "		if s == nil {"), groupSnapshot, "TestForeignMembers"},
	{ofGroups, "a deletion without spec.destroy destroys", inGroup("reconciler.go",
		"	if p.deleted() && p.o.Spec.Destroy {\n		return p.destroy(ctx)", "	if p.deleted() {\n		return p.destroy(ctx)"), groupSnapshot, "TestDeletionWithoutDestroyKeepsTheData"},
	{ofGroups, "calls to a pair that hangs have no limit", inGroup("pairs.go",
		"	ctx, cancel := context.WithTimeout(ctx, limit)\n	defer cancel()\n	r, err := f(ctx)", "	ctx, cancel := context.WithTimeout(ctx, 9*limit)\n	defer cancel()\n	r, err := f(ctx)"), groupSnapshot, "TestPairThatHangs"},
	{ofGroups, "a member is taken by itself", below(memberSnapshot+"/reconciler.go",
		"	if err := p.awaitGroup(ctx); err != nil {\n		return err\n	}\n", ""), memberSnapshot, "TestMemberIsTakenWithItsGroup"},
	{ofGroups, "a member that the published group lacks is taken", below(memberSnapshot+"/take.go",
		"	case p.snap == nil && p.o.Spec.Group != \"\":", "	case p.snap == nil && p.o.Spec.Group == \"?\":"), memberSnapshot, "TestMemberIsTakenWithItsGroup"},
	{ofGroups, "a member is destroyed by itself", below(memberSnapshot+"/take.go",
		"	if err := p.heldByGroup(ctx); err != nil {\n		return err\n	}\n", ""), memberSnapshot, "TestMemberIsDestroyedWithItsGroup"},
}

func init() { mutants = append(mutants, groupMutants...) }
