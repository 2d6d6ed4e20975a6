package doctor

import "testing"

var orphanCases = []trouble{
	{"LUNs", "Orphans", Warning, "TargetPair/main-p0", func(o *Objects) { o.Pairs[0].Status.Orphans = []string{uuid(77), uuid(0)} }, map[string]func(*Objects){
		"gone":                    back,
		"the object was made now": func(o *Objects) { o.LUNs[0].Spec.Placement.UUID, o.LUNs[2].Spec.Placement.UUID = uuid(77), uuid(0) },
	}, []string{"status.orphans: 1 LUNs: [" + uuid(77) + "]", "kubectl gemel import"}},
}

func TestOrphans(t *testing.T) { check(t, orphanCases) }
