// Package release gives tests the releases that this tree is upgraded from: their source as it was,
// and their binaries, made from the project's own history and kept in the cache.
package release

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// Release is a version that was given out.
type Release struct {
	Name   string // as in a chart's appVersion
	Commit string // 40 hex digits
}

//go:embed releases.txt
var list string

// Latest is the release that came before this tree: the one that an upgrade begins at.
func Latest() (Release, error) {
	all, err := parse(list)
	if err != nil {
		return Release{}, err
	}
	return all[len(all)-1], nil
}

// Find gives the release of that name; the error lists those that there are.
func Find(name string) (Release, error) {
	all, err := parse(list)
	if err != nil {
		return Release{}, err
	}
	var names []string
	for _, r := range all {
		if r.Name == name {
			return r, nil
		}
		names = append(names, r.Name)
	}
	return Release{}, fmt.Errorf("release %q is not in internal/testkit/release/releases.txt, which has %s", name, strings.Join(names, ", "))
}

var (
	nameRE   = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)
	commitRE = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// parse reads the list, which is never empty.
func parse(text string) (all []Release, err error) {
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		switch {
		case len(f) != 2 || !nameRE.MatchString(f[0]) || !commitRE.MatchString(f[1]):
			return nil, fmt.Errorf("releases.txt, line %d: %q must be a version as 1.2.3 and a commit of 40 hex digits", number, strings.TrimSpace(line))
		case seen[f[0]]:
			return nil, fmt.Errorf("releases.txt, line %d: release %s is there twice", number, f[0])
		}
		seen[f[0]] = true
		all = append(all, Release{f[0], f[1]})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("releases.txt names no release")
	}
	return all, nil
}
