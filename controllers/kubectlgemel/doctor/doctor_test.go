package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func TestHealthyClusterHasNoFinding(t *testing.T) {
	if list := Examine(healthy(100), now); list == nil || len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// What a status may lack is missing: objects that were just made, and those of earlier releases.
func TestObjectsWithoutStatus(t *testing.T) {
	o := healthy(6)
	for i, spoil := range []func(s *v1alpha1.TargetPairStatus){
		func(s *v1alpha1.TargetPairStatus) {
			s.Scrub, s.Ownership, s.Nodes, s.Pools, s.Capacity = nil, nil, nil, nil, nil
		},
		func(s *v1alpha1.TargetPairStatus) {
			s.Scrub, s.Pools[0].Free, s.Pools[1].Capacity = &v1alpha1.ScrubStatus{}, nil, nil
		},
		func(s *v1alpha1.TargetPairStatus) {
			s.Scrub.LastResult.FinishedAt, s.Damage = nil, []v1alpha1.NodeDamage{{Node: "a", HealedBlocks: 1}}
		},
		func(s *v1alpha1.TargetPairStatus) { s.Nodes = s.Nodes[1:] },
	} {
		s := o.Pairs[0].DeepCopy()
		spoil(&s.Status)
		if list := Examine(&Objects{Clusters: o.Clusters, Pairs: []v1alpha1.TargetPair{*s}}, now); len(list) != 0 {
			t.Errorf("%d: %+v", i, list)
		}
	}
	scrubbed("Mismatched", 1, 0)(o)
	o.Pairs[0].Status.Scrub.LastResult.FinishedAt = nil
	o.Pairs[0].Status.Damage = []v1alpha1.NodeDamage{{Node: "a", LostBlocks: 1}}
	if list := Examine(o, now); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	empty := &Objects{Clusters: make([]v1alpha1.StorageCluster, 1), Pairs: make([]v1alpha1.TargetPair, 1), LUNs: make([]v1alpha1.LogicalUnit, 1), Snapshots: make([]v1alpha1.LogicalUnitSnapshot, 1), Groups: make([]v1alpha1.LogicalUnitGroupSnapshot, 1), Hosts: make([]v1alpha1.Host, 1)}
	for _, f := range Examine(empty, now) {
		if f.Rule != "NotObserved" {
			t.Errorf("%+v", f)
		}
	}
}

// Every rule has a case.
func TestEveryRuleHasACase(t *testing.T) {
	cases := slices.Concat(pairCases, resyncCases, rollCases, damageCases, scrubCases, orphanCases, poolCases, ownershipCases, lunCases, groupCases, hostCases, pathCases, clusterCases, observedCases, deletionCases)
	for _, r := range rules {
		if !slices.ContainsFunc(cases, func(c trouble) bool { return c.rule == r.name }) {
			t.Errorf("rule %s has no case", r.name)
		}
	}
	for _, c := range cases {
		if !slices.ContainsFunc(rules, func(r rule) bool { return c.rule == r.name }) {
			t.Errorf("there is no rule %s", c.rule)
		}
	}
}

// The worst is first; causes come before their effects.
func TestOrder(t *testing.T) {
	o := healthy(6)
	lunIs("Ready", false, "NoRoom", "no room", time.Hour)(o)
	hostIs("Ready", false, "NotSupported", "no multipathd", time.Hour)(o)
	clusterIs("Ready", false, "TooFewNodes", "too few", time.Hour)(o)
	snapshotIs(false, "Missing", "gone", time.Hour)(o)
	damaged(blocksOfBoth)(o)
	free("0")(o)
	var got []string
	for _, f := range Examine(o, now) {
		got = append(got, string(f.Severity)+" "+f.Object+" "+f.Rule)
	}
	want := []string{"Critical TargetPair/main-p0 BlocksLost", "Critical TargetPair/main-p0 PoolFull", "Critical LogicalUnitSnapshot/snap-00000 SnapshotNotReady",
		"Warning StorageCluster/main ClusterNotReady", "Warning LogicalUnit/lun-00000 LUNNotReady", "Warning Host/worker-1 HostNotReady", "Note TargetPair/main-p0 BlocksHealed"}
	if !slices.Equal(got, want) {
		t.Error(strings.Join(got, "\n"))
	}
}

var (
	pageName = regexp.MustCompile(`docs/[a-z-]+\.md(#[a-z0-9-]*)?`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	dropped  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Every page and heading that a rule names exists.
func TestDocumentationExists(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	seen := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range pageName.FindAllString(string(text), -1) {
			seen++
			page, anchor, _ := strings.Cut(ref, "#")
			if _, ok := pages[page]; !ok {
				text, err := os.ReadFile(filepath.Join("../../..", page))
				if err != nil {
					t.Fatal(err)
				}
				pages[page] = string(text)
			}
			if !slices.ContainsFunc(heading.FindAllStringSubmatch(pages[page], -1), func(m []string) bool {
				return anchor == strings.ReplaceAll(strings.ToLower(dropped.ReplaceAllString(m[1], "")), " ", "-")
			}) {
				t.Errorf("%s names %s, which does not exist", f, ref)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d references were found", seen)
	}
}

// A cluster of 10,000 LUNs, all in trouble, is examined in well under a second.
func TestExamineIsFast(t *testing.T) {
	o := large()
	best := time.Hour
	for range 3 { // the machine may be busy
		start := time.Now()
		if list := Examine(o, now); len(list) == 0 {
			t.Error("no finding")
		}
		best = min(best, time.Since(start))
	}
	if best > time.Second {
		t.Errorf("it took %v", best)
	}
}

func BenchmarkExamine(b *testing.B) {
	o := large()
	for b.Loop() {
		Examine(o, now)
	}
}

func large() *Objects {
	o := healthy(10_000)
	for i := range o.LUNs {
		set(&o.LUNs[i].Status.Conditions, "Ready", false, "NoRoom", "no pair has room for "+o.LUNs[i].Name, time.Hour)
		o.LUNs[i].Status.Owner = "b"
	}
	awayWaits("LUN u: host h is not logged in at node a")(o)
	return o
}
