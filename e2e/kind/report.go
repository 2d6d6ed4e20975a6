package kind

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
)

// results of a run, written to out/e2e.json for people and CI.
var results report

// report is what a run found.
type report struct {
	mu sync.Mutex

	Specs   int `json:"specs"`
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`

	PodIOErrors int     `json:"pod_io_errors"`           // commands that failed in a pod while something was done to the storage
	LostWrites  int     `json:"lost_writes"`             // blocks that did not hold what was written last
	Operations  uint64  `json:"operations"`              // of pods under load
	OwnerLoss   float64 `json:"owner_loss_pause_ms_max"` // longest operation when an owner was lost
	Transfer    float64 `json:"planned_pause_ms_max"`    // longest operation when nothing but planned moves happened

	PVCToRunning []float64 `json:"pvc_to_running_s,omitempty"`
}

func (r *report) count(state string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Specs++
	switch state {
	case "passed":
		r.Passed++
	case "skipped", "pending":
		r.Skipped++
	default:
		r.Failed++
	}
}

func (r *report) write(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
