package doctor

import "fmt"

// orphans: LUNs on the disks without an object. The operator lists a UUID only after it has looked
// for the object twice; an object that was made since then is not reported.
func orphans(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		if len(p.Status.Orphans) == 0 {
			continue
		}
		placed := map[string]bool{}
		for _, lu := range x.luns[p.Name] {
			placed[lu.Spec.Placement.UUID] = true
		}
		var left []string
		for _, id := range p.Status.Orphans {
			if !placed[id] {
				left = append(left, id)
			}
		}
		if len(left) == 0 {
			continue
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "the pair has LUNs without a LogicalUnit: nothing uses or removes them", Cause: "their LogicalUnits were deleted by force, with their definitions, or with etcd",
			Evidence:  []string{fmt.Sprintf("status.orphans: %d LUNs: %v", len(left), left[:min(len(left), maxOthers)])},
			Procedure: []string{"kubectl gemel import shows what it would make; with --apply it makes the objects again", "to destroy such a LUN: import it, set spec.destroy of its LogicalUnit, then delete the LogicalUnit", "see docs/kubernetes.md#the-objects-are-lost"}})
	}
}
