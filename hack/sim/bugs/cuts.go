package main

var withCuts = []string{"-with", "cut through two LUNs"}

// The mistakes of a cut through LUNs of both nodes (docs/decisions/0070): of the pair's holds, and
// of the simulated runtime.
var cutBugs = []bug{
	{rule: "R14", name: "changes start while they are held for a cut", file: "quiesce.go", flags: withCuts,
		old: "u.quiesced > 0 || u.kept > 0 && o.changes() }", new: "u.quiesced > 0 }"},
	{rule: "R14", name: "a hold does not wait for changes that are at work", file: "quiesce.go", flags: withCuts,
		old: "\t\treturn u.changing\n", new: "\t\treturn 0\n"},
	{player: runtimes, rule: "R14", name: "members are cut that are not held", file: "cut.go", flags: withCuts,
		old: "\tif len(luns) == 0 {\n", new: "\tif true || len(luns) == 0 {\n"},
}
