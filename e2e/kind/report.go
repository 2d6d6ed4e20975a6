package kind

import "github.com/gemel-storage/gemel/internal/testkit/report"

// results of a run, written to out/e2e.json for people and CI.
var results findings

// findings are what a run found.
type findings struct {
	report.Counts

	PodIOErrors int     `json:"pod_io_errors"`            // commands that failed in a pod while something was done to the storage
	LostWrites  int     `json:"lost_writes"`              // blocks that did not hold what was written last
	Operations  uint64  `json:"operations"`               // of pods under load
	OwnerCrash  float64 `json:"owner_crash_pause_ms_max"` // the process of an owner crashed under its supervisor
	OwnerLoss   float64 `json:"owner_loss_pause_ms_max"`  // longest operation when an owner was lost
	Transfer    float64 `json:"planned_pause_ms_max"`     // longest operation when nothing but planned moves happened

	PVCToRunning []float64 `json:"pvc_to_running_s,omitempty"`
	Upgrade      *upgrade  `json:"upgrade,omitempty"` // only of a run of that spec
	Zones        *zones    `json:"zones,omitempty"`
	Hot          *hot      `json:"hot,omitempty"`
}

// hot is when two busy LUNs of one node parted, and the reason that was given.
type hot struct {
	Seconds float64 `json:"seconds"` // from when both were busy
	Message string  `json:"message"`
}

// zones is what two zones with pairs across them have shown.
type zones struct {
	Claims         int     `json:"claims"`
	Bytes          uint64  `json:"bytes"`            // between workers and targets
	CrossZoneShare float64 `json:"cross_zone_share"` // of them, what went to a target in the other zone; 0.5 if homes were chosen by chance
	Lost           float64 `json:"zone_lost_pause_ms_max,omitempty"`
	LostOperations int64   `json:"zone_lost_operations,omitempty"` // of pods in the other zone meanwhile
}

// upgrade from the release before this tree, and back.
type upgrade struct {
	From       string  `json:"from"`
	FromCommit string  `json:"from_commit"`
	To         string  `json:"to"`
	Up         rollout `json:"up"`
	Back       rollout `json:"back"`
}

// rollout is one of the two, under load.
type rollout struct {
	Seconds    float64 `json:"seconds"` // until everything ran the other release and both nodes were in sync
	Operations int64   `json:"operations"`
	Longest    float64 `json:"longest_ms"` // of these operations
}
