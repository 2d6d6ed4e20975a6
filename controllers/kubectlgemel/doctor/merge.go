package doctor

import (
	"fmt"
	"strings"
)

// Limits of the output.
const (
	maxAlike    = 3   // alike findings that stay separate
	maxOfARule  = 10  // findings of a rule and severity
	maxOthers   = 4   // names of others in a finding
	maxEvidence = 5   // lines
	maxLine     = 600 // bytes of a line of evidence or of a cause
)

// placeholder of the object's name in a procedure. It becomes the name, or of several objects the
// word of the kind.
const placeholder = "{name}"

var nameOf = map[string]string{kindCluster: "CLUSTER", kindPair: "PAIR", kindLUN: "LUN", kindSnapshot: "SNAPSHOT", kindHost: "HOST"}

// merge makes one finding of many alike ones of a rule, which are sorted. Findings are alike if
// they have the same severity, problem and cause. What is still too many becomes one finding,
// although the causes differ.
func merge(list []Finding) []Finding {
	groups := make([][]Finding, len(list))
	for i := range list {
		groups[i] = list[i : i+1 : i+1]
	}
	groups = group(groups, maxAlike, 0, func(f *Finding) string { return string(f.Severity) + "\x00" + f.Problem + "\x00" + f.Cause })
	groups = group(groups, maxOfARule, maxOfARule-1, func(f *Finding) string { return string(f.Severity) })
	out := make([]Finding, 0, len(groups))
	for _, g := range groups {
		out = append(out, one(g))
	}
	return out
}

// group joins what has the same key if it is more than most, except the first keep.
func group(list [][]Finding, most, keep int, key func(*Finding) string) (out [][]Finding) {
	count, seen, joined := map[string]int{}, map[string]int{}, map[string]int{}
	for _, g := range list {
		count[key(&g[0])]++
	}
	for _, g := range list {
		k := key(&g[0])
		seen[k]++
		if count[k] <= most || seen[k] <= keep {
			out = append(out, g)
			continue
		}
		if i, ok := joined[k]; ok {
			out[i] = append(out[i], g...)
			continue
		}
		joined[k] = len(out)
		out = append(out, g)
	}
	return out
}

// one finding of a group.
func one(g []Finding) Finding {
	f := g[0]
	f.Object, f.Count, f.Evidence = f.at.kind+"/"+f.at.name, 1, nil
	name := f.at.name
	causes := map[string]bool{}
	objects := map[ref]bool{f.at: true}
	for i := range g {
		causes[g[i].Cause] = true
		for _, line := range g[i].Evidence {
			if len(g) > 1 {
				line = g[i].at.name + ": " + line
			}
			if len(f.Evidence) < maxEvidence {
				f.Evidence = append(f.Evidence, short(line))
			}
		}
		if o := g[i].at; !objects[o] {
			objects[o] = true
			f.Count++
			name = nameOf[f.at.kind]
			if len(f.Others) < maxOthers {
				f.Others = append(f.Others, o.name)
			}
		}
	}
	if n := len(causes); n > 1 {
		f.Cause = fmt.Sprintf("%d different causes; the first: %s", n, f.Cause)
	}
	f.Cause = short(f.Cause)
	lines := make([]string, len(f.Procedure))
	for i, line := range f.Procedure {
		lines[i] = strings.ReplaceAll(line, placeholder, name)
	}
	f.Procedure = lines
	return f
}

// short is one line of limited length: messages of conditions may have 32 KiB.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxLine {
		return s
	}
	return strings.ToValidUTF8(s[:maxLine], "") + " …"
}
