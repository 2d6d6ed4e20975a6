//go:build race

package pair

// buildFlags makes the target processes detect races when the test does.
var buildFlags = []string{"-race"}
