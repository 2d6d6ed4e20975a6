package doctor

import (
	"fmt"
	"time"
)

// crashNews is for how long a crash is a finding.
const crashNews = 24 * time.Hour

// nodeCrashed: the process of a node crashed, and was started again in the same container, where
// Kubernetes does not count it.
func nodeCrashed(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		for j := range p.Status.Nodes {
			n := &p.Status.Nodes[j]
			c := n.Crashes
			if c == nil || x.age(c.Time) > crashNews {
				continue
			}
			at := c.Time.UTC().Format(time.RFC3339)
			x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "the process of a node crashed", Cause: fmt.Sprintf("node %s, at %s: %s", n.Name, at, c.Last),
				Evidence: []string{fmt.Sprintf("status.nodes[%s].crashes: count %d, last %q, time %s", n.Name, c.Count, c.Last, at)},
				Procedure: []string{"read what the process wrote before it ended, and report it: kubectl logs -n " + x.Namespace + " " + n.Pod,
					"its supervisor starts it again, after a wait of up to 60 s if it crashes again and again; see docs/operations.md#a-process-that-crashes"}})
		}
	}
}
