package main

import "github.com/gemel-storage/gemel/internal/testkit/mutate"

// ofExtents is the hazard of mutants of the map of extents and of their moves.
const ofExtents = -8

const extents = "dataplane/extents"

func inExtents(file, old, new string) []mutate.Edit {
	return []mutate.Edit{{File: extents + "/" + file, Old: old, New: new}}
}

// played finds mistakes that take a crash, or an unlucky order.
const played = "TestMovesAndCrashes"

var extentMutants = []mutant{
	{ofExtents, "what an aborted move has left shows through holes", inExtents("move.go",
		"	if err := s.images[to].Punch(off, length); err != nil {\n		return nil, err\n	}\n", "	_, _ = off, length\n"), extents, played},
	{ofExtents, "writes go to the old place only while an extent moves", inExtents("spread.go",
		"		case mv == nil || mv.failed() != nil:", "		case true:"), extents, played},
	{ofExtents, "the map names a place that is not flushed", inExtents("move.go",
		"		err = s.images[to].Sync()\n", "		_ = s.images[to].Sync\n"), extents, played},
	{ofExtents, "the old place is freed before the map names the new one", inExtents("move.go",
		"	if err := s.m.Set([]int64{extent}, mv.to); err != nil {", "	off, length := s.span(extent)\n	_ = s.images[mv.from].Punch(off, length)\n	if err := s.m.Set([]int64{extent}, mv.to); err != nil {"), extents, played},
	{ofExtents, "a flush leaves out the new place", inExtents("spread.go",
		"	for _, v := range s.named {\n		if err := s.images[v].Sync()", "	here := map[uint8]bool{}\n	for e := range Extents(s.size.Load()) {\n		here[s.m.At(e)] = true\n	}\n	for _, v := range s.named {\n		if !here[v] {\n			continue\n		}\n		if err := s.images[v].Sync()"), extents, played},
	{ofExtents, "a write that failed at the old place in part is not at the new one", inExtents("spread.go",
		"			mv.fail(fmt.Errorf(\"%w: %w\", ErrSpoilt, err))\n", ""), extents, played},
	{ofExtents, "a move ends although its volume became full", inExtents("spread.go",
		"			mv.fail(fmt.Errorf(\"%w: %w\", ErrTargetFull, err))\n			return nil", "			return nil"), extents, played},
	{ofExtents, "a piece is copied while hosts write to it", inExtents("move.go",
		"	b := s.locks.of(extent)\n	b.take()\n	defer b.give()\n	if err := mv.failed(); err != nil {\n		return 0, err", "	b := s.locks.of(extent)\n	b.share()\n	defer b.unshare()\n	if err := mv.failed(); err != nil {\n		return 0, err"), extents, played},
	{ofExtents, "what a relative has shows through holes", inExtents("move.go",
		"	case !data && mv.like:\n		return run, to.Punch(off, run)\n", ""), extents, played},
	{ofExtents, "what a relative has stays after it could not be shared", inExtents("move.go",
		"		if mv.like = like() == nil; !mv.like {", "		if mv.like = like() == nil; false {"), extents, played},
	{ofExtents, "a block that differs at its end only is taken for the same", inExtents("move.go",
		"!bytes.Equal(p[end:min(end+sameBlock, len(p))], have[end:min(end+sameBlock, len(p))])", "!bytes.Equal(p[end:min(end+4, len(p))], have[end:min(end+4, len(p))])"), extents, "TestLikeWritesWhatDiffers"},
	{ofExtents, "what was read before a host has changed it is copied", inExtents("move.go",
		"	if err != nil || mv.changes.Load() != changes {", "	if _ = changes; err != nil {"), extents, played},
	{ofExtents, "a change counts when it begins", inExtents("spread.go",
		"			defer mv.changes.Add(1)", "			mv.changes.Add(1)"), extents, played},
	{ofExtents, "what is changed while a piece is read does not count", inExtents("move.go",
		"	changes := mv.changes.Load()\n	run, data, err := s.readPiece(mv, p, have, off)\n", "	run, data, err := s.readPiece(mv, p, have, off)\n	changes := mv.changes.Load()\n"), extents, played},
	{ofExtents, "a place is looked up before the extent is locked", inExtents("spread.go",
		"		b := s.locks.of(extent)\n		b.share()\n		defer b.unshare()\n		return fn(s.images[s.m.At(extent)], off, length)", "		b, at := s.locks.of(extent), s.m.At(extent)\n		b.share()\n		defer b.unshare()\n		return fn(s.images[at], off, length)"), extents, played},
	{ofExtents, "a sweep frees the new place of an extent that moves", inExtents("move.go",
		"mv != nil && mv.to == v {", "mv != nil && mv.to == v && false {"), extents, played},
	{ofExtents, "a place is freed that became the extent's since", inExtents("move.go",
		"	if s.m.At(extent) == volume || s.m.Failed() != nil {", "	if s.m.Failed() != nil {"), extents, "TestSweepLooksAgain"},
	{ofExtents, "a place is freed after a failure of the map", inExtents("move.go",
		"	if s.m.At(extent) == volume || s.m.Failed() != nil {", "	if s.m.At(extent) == volume {"), extents, "TestFailureOfTheMapFreesNothing"},
	{ofExtents, "a place is read before it is durable", inExtents("map.go",
		"	for n, upTo := range asked {\n", "	for n, upTo := range asked {\n		publish(*m.table.Load(), n, &m.pairs[n].want)\n"), extents, "TestFailureIsFinal"},
	{ofExtents, "a change overwrites the block that counts", append(inExtents("map.go",
		"int64(1-p.newer)) * block", "int64(p.newer)) * block"), inExtents("map.go", "1-p.newer, false", "p.newer, false")...), extents, "TestTornWriteLosesNothing"},
	{ofExtents, "a map that was cut is made longer", inExtents("create.go",
		"	if _, err := m.f.ReadAt(buf, 2*n*block); errors.Is(err, io.EOF) {\n		return nil", "	if _, err := m.f.ReadAt(buf, 2*n*block); errors.Is(err, io.EOF) {\n		m.owner.encode(buf[:block], uint32(n), 1, make([]byte, PairExtents))\n	} else if false {\n		return nil"), extents, "TestDamageIsNoticed"},
	{ofExtents, "the map of another LUN is taken", inExtents("block.go",
		"	case uuid.UUID(p[32:48]) != o.LUN:", "	case false:"), extents, "TestDamageIsNoticed"},
}

func init() { mutants = append(mutants, extentMutants...) }
