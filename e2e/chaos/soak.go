package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gemel-storage/gemel/e2e/harness"
)

// A soak is a long run in which phases take turns: everything at once, and only what leaves the processes alive. In the second kind
// they get old, and what they use is looked at whenever the pair is in sync: memory, goroutines and descriptors have to stay flat.

// calmPhase is the length of a phase.
const calmPhase = 10 * time.Minute

// ending are the kinds that end processes.
var ending = []Kind{Kill, KillBoth, Terminate}

// calmKinds are the others.
func calmKinds(kinds []Kind) []Kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool { return slices.Contains(ending, k) })
}

// Sample is what a node's process used at a moment at which the pair was in sync.
type Sample struct {
	At         float64 `json:"seconds"` // since the run began
	Node       string  `json:"node"`
	PID        int     `json:"pid"`
	Resident   float64 `json:"resident_bytes"`
	Goroutines float64 `json:"goroutines"`
	Files      float64 `json:"open_files"`
}

// sample looks at both nodes.
func (x *runner) sample(ctx context.Context) error {
	for i, name := range harness.Names {
		s := Sample{At: time.Since(x.rig.rec.begun).Seconds(), Node: name, PID: x.rig.pair.PID(i)}
		if err := scrape(ctx, "http://"+x.rig.pair.Metrics[i]+"/metrics", map[string]*float64{
			"process_resident_memory_bytes": &s.Resident, "go_goroutines": &s.Goroutines, "process_open_fds": &s.Files}); err != nil {
			return fmt.Errorf("metrics of node %s: %w", name, err)
		}
		x.report.Samples = append(x.report.Samples, s)
	}
	return nil
}

// scrape reads gauges without labels.
func scrape(ctx context.Context, url string, want map[string]*float64) (err error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return err
	}
	for name, to := range want {
		f := families[name]
		if f == nil || len(f.Metric) != 1 || f.Metric[0].Gauge == nil {
			return fmt.Errorf("%s is missing", name)
		}
		*to = f.Metric[0].Gauge.GetValue()
	}
	return nil
}

// Growth that is allowed from the first third of a run to the last one: the greatest of each are compared. Buffers and caches fill, and
// a sample may meet a few sessions more.
const (
	growthFactor     = 1.5
	growthResident   = 96 << 20
	growthGoroutines = 60
	growthFiles      = 40
	minSamples       = 30
)

// flat judges the samples of a soak.
func flat(samples []Sample) error {
	if len(samples) < minSamples {
		return fmt.Errorf("%d samples are too few to tell whether anything grows; %d are the least: a longer run has them", len(samples), minSamples)
	}
	third := len(samples) / 3
	first, last := samples[:third], samples[len(samples)-third:]
	var errs []error
	for _, k := range []struct {
		name  string
		of    func(*Sample) float64
		allow float64
	}{
		{"resident memory", func(s *Sample) float64 { return s.Resident }, growthResident},
		{"goroutines", func(s *Sample) float64 { return s.Goroutines }, growthGoroutines},
		{"open files", func(s *Sample) float64 { return s.Files }, growthFiles},
	} {
		most := func(list []Sample) (m float64) {
			for i := range list {
				m = max(m, k.of(&list[i]))
			}
			return m
		}
		if a, b := most(first), most(last); b > a*growthFactor && b > a+k.allow {
			errs = append(errs, fmt.Errorf("%s: at most %.0f in the first third, %.0f in the last", k.name, a, b))
		}
	}
	return errors.Join(errs...)
}
