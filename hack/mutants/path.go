package main

// ofPath is the hazard of mutants of the data path: what is done together, and what must not wait
// for it.
const ofPath = -5

func init() { mutants = append(mutants, pathMutants...) }

var pathMutants = []mutant{
	{ofPath, "an answer waits for the disk of the next command", below("dataplane/node/lane.go",
		"			n.carryOut(a, current{})\n			a.out.Send()\n", "			_ = a\n"), "dataplane/node", "TestNoAnswerWaitsForTheNextCommand"},
	{ofPath, "a message waits for the rest of the next one", below("dataplane/link/link.go",
		"	c.wire.idle = handOver\n", ""), "dataplane/link", "TestBatchesEndBeforeTheReaderWaits"},
	{ofPath, "the partner hears of a write when the next one comes", below("dataplane/iscsi/output.go",
		"	c.starts.Send()\n", ""), "dataplane/iscsi", "TestStartsLeaveBeforeTheReaderWaits"},
	{ofPath, "answers that are left leave one by one", below("dataplane/iscsi/command.go",
		"	if later == nil || c.queued >= batchBytes {", "	if true {"), "dataplane/iscsi", "TestAnswersLeaveTogether"},
	{ofPath, "a goroutine that must not wait writes to a disk that has too much to do", below("dataplane/store/trywrite.go",
		"		f.wb.dirty.Load() >= f.wb.limit.Load() {", "		false {"), "dataplane/store", "TestTryWriteLeavesWhatWaits"},
	{ofPath, "a goroutine that encrypts waits behind one that waits for the socket", below("dataplane/link/wire.go",
		"	if w.draining || w.raw == nil {", "	if w.raw == nil {"), "dataplane/link", "TestWireNeverWaits"},
	{ofPath, "a durable write is not flushed", below("dataplane/store/durable.go",
		"		if err = f.durableError(f.put(d.P, d.Off, unix.RWF_DSYNC)); err != nil", "		if err = f.durableError(f.put(d.P, d.Off, 0)); err != nil"), "dataplane/store", "TestDurableWritesSurviveALossOfPower"},
	{ofPath, "what a node could not make of a batch is not asked for again", below("dataplane/node/batch.go",
		"end.res == scsi.OK && len(end.out.Parts)", "len(end.out.Parts)"), "dataplane/node", "TestFailureOfAPart"},
	{ofPath, "a node does not say that it could not make a part of a batch", below("dataplane/node/logentry.go",
		"			w.res = scsi.Failed\n", ""), "dataplane/node", "TestFailureOfAPart"},
	{ofPath, "a batch is proposed to a node that knows none", below("dataplane/node/batch.go",
		"v.Linked && n.peerKnows(featureBatch) ||", "v.Linked ||"), "dataplane/node", "TestCallersShareEntries"},
	{ofPath, "a batch makes progress although the disk hangs", below("dataplane/node/logentry.go",
		"	moved()\n	var wg sync.WaitGroup\n	wg.Go(func() { n.entryFiles", "	defer moved()\n	var wg sync.WaitGroup\n	wg.Go(func() { n.entryFiles"), "dataplane/node", "TestDiskThatHangsDuringABatch"},
	{ofPath, "callers wait for each other, and share nothing", below("dataplane/node/batch.go",
		"!x.entry.FitsBatch(parts) ||", "len(parts) > 0 ||"), "dataplane/node", "TestCallersShareEntries"},
	{ofPath, "a batch has two entries of one LUN", below("dataplane/meta/batch.go",
		" && !slices.ContainsFunc(batch, func(x *Entry) bool { return x.batchLUN() == e.batchLUN() })", " && !slices.Contains(batch, e)"), "dataplane/meta", "TestBatchIsRefused"},
	{ofPath, "a durable write that joins others does not wait for them", below("dataplane/store/durable.go",
		"		g.joined = append(g.joined, d)\n		g.mu.Unlock()\n", "		g.mu.Unlock()\n		d.By.Ended([]*Durable{d})\n"), "dataplane/store", "TestDurableWritesSurviveALossOfPower"},
}
