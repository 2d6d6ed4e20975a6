package kind

import "github.com/gemel-storage/gemel/e2e/report"

// results of a run, written to out/e2e.json for people and CI.
var results findings

// findings are what a run found.
type findings struct {
	report.Counts

	PodIOErrors int     `json:"pod_io_errors"`           // commands that failed in a pod while something was done to the storage
	LostWrites  int     `json:"lost_writes"`             // blocks that did not hold what was written last
	Operations  uint64  `json:"operations"`              // of pods under load
	OwnerLoss   float64 `json:"owner_loss_pause_ms_max"` // longest operation when an owner was lost
	Transfer    float64 `json:"planned_pause_ms_max"`    // longest operation when nothing but planned moves happened

	PVCToRunning []float64 `json:"pvc_to_running_s,omitempty"`
}
