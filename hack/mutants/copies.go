package main

// ofCopies is the hazard of mutants that are about no worker: of copies that are made in the
// background (R14).
const ofCopies = -1

var copyMutants = []mutant{
	{ofCopies, "a write does not copy the piece that it changes", below("dataplane/store/change.go",
		"		c.keep(off, length)\n", "		_ = c\n"), "dataplane/store", "TestCopyIsWhatTheSourceWas"},
	{ofCopies, "a first write is done where the next ones wait for it", below("dataplane/store/prompt.go",
		"		if c != nil && !c.has(off, length) {\n			return false\n		}\n", "		_ = c\n"), "dataplane/store", "TestFirstWriteIsNotPrompt"},
	{ofCopies, "a read of a copy finds what is not copied yet", below("dataplane/store/file.go",
		"		if err := c.need(off, int64(len(p))); err != nil {\n			return err\n		}\n", "		_ = c\n"), "dataplane/store", "TestCopyIsWhatTheSourceWas"},
	{ofCopies, "a piece that is being copied counts as copied", below("dataplane/store/copying.go",
		"		if free == 0 {\n			c.moved.Wait()\n			continue\n		}\n", "		if free == 0 {\n			return nil\n		}\n"), "dataplane/store", "TestWriteWaitsForAPieceThatIsBeingCopied"},
	{ofCopies, "a copy has the checksums of zeroes", below("dataplane/store/copyrange.go",
		"	if err := c.moveSums(off, length); err != nil {\n		return err\n	}\n", ""), "dataplane/store", "TestCopyIsWhatTheSourceWas"},
	{ofCopies, "a copy has the checksums of blocks in doubt", below("dataplane/store/copyrange.go",
		"	if err := c.src.settleRange(off, length); err != nil {\n		return err\n	}\n", ""), "dataplane/store", "TestCopyKeepsDamage"},
	{ofCopies, "a lack of space for a copy fails a write", below("dataplane/store/change.go",
		"		c.keep(off, length)\n", "		if err := c.need(off, length); err != nil {\n			return err\n		}\n"), "dataplane/store", "TestCopyWithoutSpace"},
	{ofCopies, "a copy that is dropped writes on", below("dataplane/store/copying.go",
		"	for len(c.busy) > 0 {\n		c.moved.Wait()\n	}\n", ""), "dataplane/store", "TestDropWaitsForWhatIsUnderWay"},
	{ofCopies, "a copy is complete before it is durable", below("dataplane/store/copying.go",
		"	err := c.dst.Checkpoint()\n", "	var err error\n"), "dataplane/store", "TestCompleteIsDurable"},
	{ofCopies, "the other node's standing does not count", below("dataplane/node/sealcopies.go",
		"		n.conclude(ctx, c, self, other)\n", "		other = copyStanding{Sealed: true}\n		n.conclude(ctx, c, self, other)\n"), "dataplane/node", "TestNoSpaceForACopy"},
	{ofCopies, "a copy of an earlier life counts", below("dataplane/node/copies.go",
		"		s := copyStanding{Failed: errLostCopy}\n", "		s := copyStanding{Sealed: true}\n"), "dataplane/node", "TestCopyIsGivenUpAfterARestart"},
	{ofCopies, "a joiner keeps what it had copied", below("dataplane/node/install.go",
		"	if err := n.addCopying(n.unsealed(s)); err != nil {\n		return nil, nil, err\n	}\n", ""), "dataplane/node", "TestInstallEndsCopies"},
	{ofCopies, "a joiner goes on with its copies", below("dataplane/node/install.go",
		"	n.dropAllCopies() //", "	//"), "dataplane/node", "TestInstallEndsCopies"},
	{ofCopies, "a joiner copies from a LUN that is copied to", below("dataplane/node/copies.go",
		"	if joining {\n		var ids", "	if false {\n		var ids"), "dataplane/node", "TestMarkWhileJoining"},
	{ofCopies, "a joiner takes for whole what was not compared", below("dataplane/node/copies.go",
		"		if born, ok := n.copies.unlisted[c.UUID]; ok && born == c.Born {", "		if born := n.copies.unlisted[c.UUID]; born == 1 {"), "dataplane/node", "TestMarkWhileJoining"},
	{ofCopies, "what a resync has brought counts without its source", below("dataplane/node/sealcopies.go",
		"	case s.Whole && other.Whole:\n		return copyLost, copyStanding{Failed: errSourceLost}\n", ""), "dataplane/node", "TestStandingsOfACopy"},
	{ofCopies, "a source decides alone about what the joiner lacks", below("dataplane/node/sealcopies.go",
		"	return c.listed != nil && !c.listed[x.UUID]\n", "	return false\n"), "dataplane/node", "TestCopyBeyondTheLastList"},
	{ofCopies, "a resync brings a copy that is not marked", below("dataplane/node/install.go",
		"prepared && s.Stage != meta.Empty &&", "prepared &&"), "dataplane/node", "TestMarkWhileJoining"},
	{ofCopies, "writes go on at the instant", below("dataplane/node/makecopy.go",
		"	if c.Still {\n", "	if true {\n"), "dataplane/node", "TestSnapshotUnderLoadIsOfOneInstant"},
	{ofCopies, "an entry concerns another copy of the same uuid", below("dataplane/meta/copies.go",
		"stage != Ready && (o.Born == born || o.Born == 0 && stage != Copying)", "stage != Ready"), "dataplane/meta", "TestEntriesAboutAnEarlierCopy"},
	{ofCopies, "a source goes while it is copied", below("dataplane/meta/apply.go",
		"	if c := s.CopyingFrom(id); c != nil {\n		return failed(\"not_ready\", \"LUN", "	if c := s.CopyingFrom(id); c != nil && false {\n		return failed(\"not_ready\", \"LUN"), "dataplane/meta", "TestSourceOfACopy"},
	{ofCopies, "the next copy of a LUN does not wait", below("dataplane/meta/copies.go",
		"if other := s.CopyingFrom(c.Source); other != nil {", "if other := s.CopyingFrom(c.Source); other != nil && false {"), "dataplane/meta", "TestSourceOfACopy"},
}

func init() { mutants = append(mutants, copyMutants...) }
