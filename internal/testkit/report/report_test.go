package report

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/gemel-storage/gemel/internal/jsonfile"
)

func spec(state types.SpecState, labels ...string) types.SpecReport {
	return types.SpecReport{LeafNodeType: types.NodeTypeIt, State: state, LeafNodeLabels: labels}
}

func TestCountsAndHazards(t *testing.T) {
	r := types.Report{SpecReports: types.SpecReports{
		{LeafNodeType: types.NodeTypeBeforeSuite, State: types.SpecStatePassed},
		spec(types.SpecStatePassed, Hazards(26, 4)...),
		spec(types.SpecStatePassed, append(Hazards(7), "smoke")...),
		spec(types.SpecStateFailed, Hazards(7, 8)...),
		spec(types.SpecStatePassed, Hazards(7)...), // does not make the failure undone
		spec(types.SpecStateSkipped, Hazards(4, 9)...),
		spec(types.SpecStateTimedout),
		{LeafNodeType: types.NodeTypeAfterSuite, State: types.SpecStatePanicked},
	}}
	if got, want := Count(r), (Counts{Specs: 7, Passed: 3, Failed: 3, Skipped: 1}); got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
	if got, want := Proved(r), []int{4, 26}; !slices.Equal(got, want) {
		t.Errorf("proved %v, want %v", got, want)
	}
}

func TestReadMutantsRefusesOldReports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mutants.json")
	if m, err := ReadMutants(path, time.Hour); m != nil || err != nil {
		t.Fatal(m, err)
	}
	if err := jsonfile.Write(path, Mutants{Mutants: 5, Caught: 4, Hazards: []int{1}}); err != nil {
		t.Fatal(err)
	}
	if m, err := ReadMutants(path, time.Hour); err != nil || m.Mutants != 5 || m.Caught != 4 {
		t.Fatal(m, err)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if m, err := ReadMutants(path, time.Hour); m != nil || err != nil {
		t.Fatal("an old file was taken", m, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMutants(path, time.Hour); err == nil {
		t.Fatal("half a file was taken")
	}
}
