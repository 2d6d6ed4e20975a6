package chaos

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Report is what is written to out/chaos.json. Times ending in _ms are milliseconds.
type Report struct {
	Seed    uint64  `json:"seed"`
	Seconds float64 `json:"duration_seconds"`
	Passed  bool    `json:"passed"`
	Error   string  `json:"error,omitempty"`
	// Interrupted says when the run was, if it was: then the histories until that moment are
	// judged, and the copies are not compared.
	Interrupted string       `json:"interrupted,omitempty"`
	Operations  int64        `json:"operations"`
	Judged      int          `json:"judged"` // entries of the histories that were checked
	Windows     int          `json:"windows"`
	Anomalies   int          `json:"anomalies"`
	WrongBytes  int          `json:"wrong_bytes"` // reads that brought what was never written there
	LostWrites  int          `json:"lost_writes"`
	AppErrors   int          `json:"application_errors"`
	NoSpace     int64        `json:"refused_for_lack_of_space"`
	Episodes    int          `json:"episodes"`
	Kills       int          `json:"kills"`
	Left        int          `json:"left"` // processes that ended because their node stopped serving
	Partitions  int          `json:"partitions"`
	Faults      map[Kind]int `json:"faults"`
	// StepDowns counts changes of the record in episodes of which an overload, a crowd, or disks
	// that were stuck on both nodes, were all.
	StepDowns int   `json:"step_downs_by_overload"`
	Flood     int64 `json:"flood_bytes"`
	// Crowds are hosts that ask for more than a node has memory. What they made of it is judged in
	// episodes of nothing else, in a pair in sync.
	Crowd         int64    `json:"crowd_sessions"`
	CrowdCommands int64    `json:"crowd_commands"`
	Confined      string   `json:"memory_confined_by"`       // cgroup or GOMEMLIMIT
	MemoryLimit   int64    `json:"memory_limit_bytes"`       // of a node
	Resident      int64    `json:"resident_bytes_max"`       // of a node beside a crowd
	CommandMemory int64    `json:"command_memory_bytes_max"` // likewise
	LimitMet      [2]int64 `json:"memory_limit_met"`         // how often a node's cgroup was full
	Replaced      int64    `json:"disks_replaced"`
	MemberDrains  int64    `json:"member_drains,omitempty"`
	Damaged       int64    `json:"files_damaged"`
	ShutDowns     int64    `json:"filesystems_shut_down"`
	// Damage is of blocks of 4 KiB. HealedBlocks are those that nodes counted as healed, and one
	// for each range that a scrub repaired at the other node.
	DamagedBlocks  int64          `json:"damaged_blocks"`
	HealedBlocks   int64          `json:"healed_blocks"`
	RepairedRanges int64          `json:"repaired_ranges"`
	ReadErrors     int64          `json:"read_errors_judged"` // that hosts got for damaged blocks while there was no good copy
	Restored       int64          `json:"lost_blocks_restored"`
	DamageWays     map[string]int `json:"damage_by_way,omitempty"`
	Unchecked      bool           `json:"without_checksums,omitempty"`
	Moves          int64          `json:"ownership_moves_of_last_process"` // that the pair has decided
	Fenced         int64          `json:"fencing_commands"`
	Recreated      int64          `json:"luns_created_again"`
	Identical      bool           `json:"copies_identical"`
	Compared       int64          `json:"compared_bytes"`
	Images         int            `json:"compared_images"`
	Differ         []string       `json:"differences,omitempty"`
	Epoch          uint64         `json:"epoch"`
	// Pauses are the longest operations that overlap an episode. Where the machine starved
	// meanwhile (see internal/testkit/lag) they are listed, and count for PauseMax alone.
	PauseMax         float64            `json:"pause_ms_max"`
	PauseFed         float64            `json:"pause_ms_max_not_starved"`
	PauseAfterKill   float64            `json:"pause_ms_max_after_kill"` // one node killed and nothing else, in sync before
	PausesOfKills    []float64          `json:"pause_ms_after_kill"`     // all that count for it
	PauseQuiet       float64            `json:"pause_ms_max_without_fault"`
	PauseByEpisode   map[string]float64 `json:"pause_ms_max_by_episode"`
	Starved          []StarvedPause     `json:"pauses_starved"`
	DiskLag          float64            `json:"disk_lag_ms_max"`
	SchedulingLag    float64            `json:"scheduling_lag_ms_max"`
	ResyncSecondsMax float64            `json:"back_in_sync_seconds_max"`
	Samples          []Sample           `json:"samples,omitempty"` // of a soak
	Details          []string           `json:"details,omitempty"`
}

// StarvedPause is a pause that says more of the machine than of the target.
type StarvedPause struct {
	Episode string  `json:"episode"`
	MS      float64 `json:"pause_ms"`
}

func ms(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

// errVerdict is wrapped by what a finished run is found guilty of.
var errVerdict = errors.New("chaos")

// Bounds that hold on a busy machine as well: generous, and still far from what an application
// would call an outage.
const (
	pauseBound     = 60 * time.Second
	killPauseBound = 5 * time.Second
)

// verdict joins everything that makes a run fail.
func (r *Report) verdict() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{errVerdict}, args...)...))
	}
	if r.Anomalies > 0 {
		bad("%d anomalies", r.Anomalies)
	}
	if r.WrongBytes > 0 {
		bad("%d reads brought what was never written there: wrong bytes", r.WrongBytes)
	}
	// What was damaged at a node that was alone may be lost, or written by hosts before anything
	// has read it, and a full copy leaves nothing to heal.
	elsewhere := r.Faults[DamageRunning] == 0 && (r.Faults[DamageStopped] == 0 || r.Restored > 0 || r.DamageWays[wayTruncate]+r.DamageWays[wayImage] > 0)
	if r.DamagedBlocks > 0 && r.HealedBlocks == 0 && r.Interrupted == "" && !r.Unchecked && !elsewhere {
		bad("%d blocks were damaged, and none was healed", r.DamagedBlocks)
	}
	if r.LostWrites > 0 {
		bad("%d acknowledged writes lost", r.LostWrites)
	}
	if r.AppErrors > 0 {
		bad("%d errors seen by applications", r.AppErrors)
	}
	if r.StepDowns > 0 {
		bad("%d times a node left because both were busy, or both disks stuck", r.StepDowns)
	}
	if !r.Identical && (r.Interrupted == "" || len(r.Differ) > 0) {
		bad("the copies differ: %v", r.Differ)
	}
	if r.Operations == 0 || r.Judged == 0 {
		bad("nothing was checked")
	}
	if r.PauseMax > ms(pauseBound) {
		bad("an operation took %.0f ms, more than %v", r.PauseMax, pauseBound)
	}
	if r.PauseAfterKill > ms(killPauseBound) {
		bad("after a kill an operation took %.0f ms, more than %v", r.PauseAfterKill, killPauseBound)
	}
	return errors.Join(errs...)
}

// Print writes the report for a reader.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "\n%d operations in %.0f s, %d windows judged; %d episodes, %d kills, %d partitions\n", r.Operations, r.Seconds,
		r.Windows, r.Episodes, r.Kills, r.Partitions)
	for _, k := range slices.Sorted(maps.Keys(r.Faults)) {
		fmt.Fprintf(w, "  %-20s %4d\n", k, r.Faults[k])
	}
	fmt.Fprintf(w, "%d MiB written by floods, step-downs by overload: %d\n", r.Flood>>20, r.StepDowns)
	fmt.Fprintf(w, "%d sessions of crowds had %d commands done; a node of %d MiB (%s) had %d MiB resident, %d MiB for commands; the limit was met %v times\n",
		r.Crowd, r.CrowdCommands, r.MemoryLimit>>20, r.Confined, r.Resident>>20, r.CommandMemory>>20, r.LimitMet)
	fmt.Fprintf(w, "%d processes left, %d disks were replaced, %d files damaged, %d filesystems shut down\n", r.Left, r.Replaced, r.Damaged, r.ShutDowns)
	fmt.Fprintf(w, "%d blocks damaged %v, %d healed (%d ranges by scrubs), %d read errors judged, %d lost blocks restored\n", r.DamagedBlocks, r.DamageWays, r.HealedBlocks,
		r.RepairedRanges, r.ReadErrors, r.Restored)
	fmt.Fprintln(w, "longest operation by episode, ms")
	for _, k := range slices.Sorted(maps.Keys(r.PauseByEpisode)) {
		fmt.Fprintf(w, "  %-44s %10.1f\n", k, r.PauseByEpisode[k])
	}
	fmt.Fprintf(w, "longest after a single kill: %.1f ms in %d kills; without fault: %.1f ms; the machine's lag up to %.1f ms, its disk's %.1f ms\n",
		r.PauseAfterKill, len(r.PausesOfKills), r.PauseQuiet, r.SchedulingLag, r.DiskLag)
	for _, p := range r.Starved {
		fmt.Fprintf(w, "  not counted, the machine starved: %s, %.1f ms\n", p.Episode, p.MS)
	}
	for _, d := range r.Details {
		fmt.Fprintln(w, d)
	}
	if r.Interrupted != "" {
		fmt.Fprintf(w, "%s: what was recorded until then is judged, the copies are not compared\n", r.Interrupted)
	}
	fmt.Fprintf(w, "anomalies %d, wrong bytes %d, lost writes %d, errors seen by applications %d, %d images compared, identical: %v, seed %d\n",
		r.Anomalies, r.WrongBytes, r.LostWrites, r.AppErrors, r.Images, r.Identical, r.Seed)
}
