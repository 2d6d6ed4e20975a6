package kernel

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/report"
)

// results of a run, written to out/e2e-kernel.json for people and CI.
var results findings

// findings are what a run found.
type findings struct {
	report.Counts

	HazardsTested   int   `json:"hazards_tested"`    // of docs/workers.md, in one way or the other or both
	Hazards         []int `json:"hazards"`           // by specs of this run that passed
	Mutants         *int  `json:"mutants,omitempty"` // guards removed from the product, if make mutants ran recently
	MutationsCaught *int  `json:"mutations_caught,omitempty"`
	MutatedHazards  []int `json:"mutated_hazards,omitempty"` // hazards of which tests have caught the removal of every guard

	Pause      pauses  `json:"pause_ms"`
	Starved    int     `json:"events_starved"` // not counted: the machine did not run the suite, or write, for too long
	Operations int64   `json:"operations"`     // of the loads whose pauses were measured
	IOErrors   int     `json:"io_errors"`      // that a load saw
	LostWrites int     `json:"lost_writes"`    // blocks without what was acknowledged last
	Seconds    float64 `json:"seconds"`
}

// pauses are the longest operations that a load saw around each kind of event, over all events of
// the kind; 0: there was no event.
type pauses struct {
	Steady          float64 `json:"steady"` // nothing happened
	PlannedTransfer float64 `json:"planned_transfer"`
	OwnerKilled     float64 `json:"owner_killed"`  // with its supervisor, as a machine that loses its power
	OwnerCrashed    float64 `json:"owner_crashed"` // its process alone, which its supervisor reports
	OwnerSilent     float64 `json:"owner_silent"`
	OneNetworkCut   float64 `json:"one_network_cut"`
	BothNetworksCut float64 `json:"both_networks_cut"` // with the time that they were cut
	TargetRestart   float64 `json:"target_restart"`
	FailBack        float64 `json:"fail_back"`
	NodeMoved       float64 `json:"node_moved"` // to another address behind the same portal, without a notice
}

// outFile is where a run leaves something for people, unless the variable names another place.
func outFile(env, name string) string {
	return cmp.Or(os.Getenv(env), filepath.Join(harness.Root(), "out", name))
}

// mutantsFresh is the greatest age of the file of the mutants: an older file was made with other
// code.
const mutantsFresh = 24 * time.Hour

var _ = ReportAfterSuite("the report", func(r Report) {
	results.Counts, results.Hazards, results.Seconds = report.Count(r), report.Proved(r), r.RunTime.Seconds()
	m, err := report.ReadMutants(outFile("GEMEL_MUTANTS", "mutants.json"), mutantsFresh)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if m != nil {
		results.Mutants, results.MutationsCaught, results.MutatedHazards = &m.Mutants, &m.Caught, m.Hazards
	}
	both := append(slices.Clone(results.Hazards), results.MutatedHazards...)
	slices.Sort(both)
	results.HazardsTested = len(slices.Compact(both))
	path := outFile("GEMEL_E2E_KERNEL_REPORT", "e2e-kernel.json")
	if err := jsonfile.Write(path, &results); err != nil {
		fmt.Fprintln(os.Stderr, path+":", err)
	}
	p := results.Pause
	fmt.Printf(`%d specs: %d passed, %d failed, %d skipped; hazards %v; %.0f s
longest operation, ms: nothing happens %.0f, planned transfer %.0f, owner killed %.0f, owner crashed %.0f, owner silent %.0f, one network cut %.0f, both cut %.0f, restart %.0f, fail-back %.0f, node moved %.0f
operations %d, I/O errors %d, lost writes %d; events not counted because the machine starved %d
`, results.Specs, results.Passed, results.Failed, results.Skipped, results.Hazards, results.Seconds,
		p.Steady, p.PlannedTransfer, p.OwnerKilled, p.OwnerCrashed, p.OwnerSilent, p.OneNetworkCut, p.BothNetworksCut, p.TargetRestart, p.FailBack, p.NodeMoved,
		results.Operations, results.IOErrors, results.LostWrites, results.Starved)
})

// hazard labels a spec with the hazards that it is about: what the numbers mean is in
// docs/workers.md.
func hazard(numbers ...int) Labels { return report.Hazards(numbers...) }
