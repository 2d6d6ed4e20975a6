package main

import "github.com/gemel-storage/gemel/internal/testkit/mutate"

// withTrouble asks for snapshots that something befalls between their instant and the end of their
// copies, and for other faults.
func withTrouble(others string) []string {
	return []string{"-with", "trouble while a snapshot is copied" + others}
}

// The mistakes of the simulated runtime in what it makes of a snapshot after its instant (R14). The
// runtime of a node follows the same rules.
var copyBugs = []bug{
	{player: runtimes, rule: "R14", name: "a block is written before it is copied to a snapshot", file: "disk.go",
		old: "\td.beforeWrite(l, off, int64(len(data)))\n", new: "\tdefer d.beforeWrite(l, off, int64(len(data)))\n"},
	{player: runtimes, rule: "R14", name: "a snapshot is marked while hosts write", file: "take.go",
		old: "\t\tif !ok || !h.m.Fix(h.clock(), q) {\n", new: "\t\tif !ok {\n",
		more: []mutate.Edit{{File: "take.go", Old: "\th.holding(lun, h.m.QuiesceChanges, undo, func(q uint64, release func()) {", New: "\tfunc(_ int, _ func(), f func(uint64, func())) { f(0, func() {}) }(lun, undo, func(q uint64, release func()) {"}}},
	{player: runtimes, rule: "R14", name: "changes continue before the other node has begun with a snapshot", hints: []uint64{4789379209873917372}, file: "take.go",
		old: "\t\th.beginsBoth(slot, born, func(ok bool) {\n", new: "\t\trelease()\n\t\th.beginsBoth(slot, born, func(ok bool) {\n",
		more: []mutate.Edit{{File: "take.go", Old: "\t\t\tif !ok || !h.m.Fix(h.clock(), q) {\n", New: "\t\t\tif !ok {\n"}}},
	{player: runtimes, rule: "R14", name: "a node begins with a snapshot when its entry is applied", hints: []uint64{17298560498332749761}, file: "snap.go", flags: withTrouble(",snapshot while joining"),
		old: "\t\tif c := h.disk.copyOf(h.w.shape.luns+slot, h.disk.meta.Snaps[slot].Born); c != nil {\n",
		new: "\t\tif h.disk.copyOf(h.w.shape.luns+slot, h.disk.meta.Snaps[slot].Born) == nil {\n\t\t\th.attach(slot)\n\t\t}\n\t\tif c := h.disk.copyOf(h.w.shape.luns+slot, h.disk.meta.Snaps[slot].Born); c != nil {\n"},
	{player: runtimes, rule: "R14", name: "a snapshot is committed when the chair's copy is sealed", file: "look.go",
		old: "\t\tcase alone || own == heldVoid || own == heldFailed:\n", new: "\t\tcase true:\n"},
	{player: runtimes, rule: "R14", name: "a snapshot is committed before it is flushed", file: "copies.go", flags: withTrouble(",power"),
		old: "\t\t\t\th.seal(slot, c)\n", new: "\t\t\t\tc.sealed = true\n"},
	{player: runtimes, rule: "R14", name: "a restarted node takes a copy that it has not sealed for sealed", file: "copies.go", flags: withTrouble(""),
		old: "\tcase c == nil:\n\t\treturn heldVoid\n", new: "\tcase c == nil:\n\t\treturn heldSealed\n"},
	{player: runtimes, rule: "R14", name: "a joiner trusts the part of a snapshot that it has", file: "snap.go", flags: withTrouble(""),
		old: "own.Born == s.Born && own.Stage == stageReady {", new: "own.Born == s.Born {"},
	{player: runtimes, rule: "R14", name: "a joiner copies blocks of its own at an instant", hints: []uint64{11415077543986656264}, file: "snap.go", flags: []string{"-with", "snapshot while joining"},
		old: "\tcase joining:\n\t\th.needs(slot)\n", new: "\tcase joining:\n\t\th.attach(slot)\n\t\th.copyOn(slot, h.disk.copies[len(h.disk.copies)-1])\n"},
	{player: runtimes, rule: "R14", name: "a joiner takes a snapshot for whole that was not compared", hints: []uint64{10408796043405586287}, file: "joiner.go", flags: []string{"-with", "snapshot while joining"},
		old: "|| h.compared[slot] == nil || slices.Contains(h.compared[slot], false) {", new: "|| false && slices.Contains(h.compared[slot], false) {"},
	{player: runtimes, rule: "R14", name: "what a resync has made whole is committed without the copy of its source", hints: []uint64{12152598392236905011}, file: "look.go", flags: withTrouble(""),
		old: "\tcase own == heldWhole && its == heldWhole:\n\t\treturn snapAbort\n", new: ""},
	{player: runtimes, rule: "R14", name: "a lone source commits what it has listed too late for its joiner", file: "look.go", hints: []uint64{5764785867839263175}, flags: []string{"-with", "snapshot while joining"},
		old: " || h.unlisted(slot, s.Born) {", new: " || false && h.unlisted(slot, s.Born) {"},
	{player: runtimes, rule: "R14", name: "an object that is prepared is on the list of a resync", hints: []uint64{10428619215063637287}, file: "snap.go", flags: []string{"-with", "snapshot while joining"},
		old: "\t\tif s.Stage > stagePrepared {\n", new: "\t\tif s.Stage > stageNone {\n"},
	{player: runtimes, rule: "R14", name: "a late commit hits a younger snapshot", file: "snap.go", flags: []string{"-with", "slot used again while its commit is late"},
		old: "e.Step == snapCommit && s.Stage == stageMarked && s.Born == e.Born:", new: "e.Step == snapCommit && s.Stage == stageMarked:"},
	{player: runtimes, rule: "R14", name: "a late abort hits a younger snapshot", file: "snap.go", flags: []string{"-with", "slot used again while its commit is late"},
		old: "s.Stage != stageNone && s.Stage != stageReady && s.Born == e.Born:", new: "s.Stage != stageNone && s.Stage != stageReady:"},
	{player: runtimes, rule: "R14", name: "a snapshot that is being copied is read as it is", hints: []uint64{15310174114602237340}, file: "copies.go", flags: []string{"-with", "snapshot while joining"},
		old: "\t\tif c.object == int(l[0])-1 {\n", new: "\t\tif false && c.object == int(l[0])-1 {\n"},
	{player: runtimes, rule: "R14", name: "a block without space for its copy is left out", file: "copies.go", flags: withTrouble(",full disk"),
		old: "\t\tc.failed = true\n\t\treturn\n", new: "\t\tc.done[g] = true\n\t\treturn\n"},
	{player: runtimes, rule: "R15", name: "a block of a snapshot is copied without its checksum", file: "copies.go",
		old: "\t\td.sums[c.object][g].mem = d.sumFor(c.lun, g)\n", new: ""},
}
