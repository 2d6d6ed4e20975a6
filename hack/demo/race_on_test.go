//go:build race

package main

// raceFlags build the demo as its tests are built.
var raceFlags = []string{"-race"}
