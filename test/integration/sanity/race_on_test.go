//go:build race

package sanity

var raceFlags = []string{"-race"}
