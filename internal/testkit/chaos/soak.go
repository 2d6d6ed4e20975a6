package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// A soak is a long run in which phases take turns: everything at once, and only what leaves the
// processes alive. In the second kind they get old, and what they use is looked at whenever the
// pair is in sync: memory, goroutines and descriptors have to stay flat.

// calmPhase is the length of a phase.
const calmPhase = 10 * time.Minute

// ending are the kinds that end processes.
var ending = append([]Kind{Kill, Crash, KillBoth, Terminate}, spoiling...)

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
		s := Sample{At: time.Since(x.rig.rec.begun).Seconds(), Node: name, PID: x.rig.pair.Serving(i)}
		if err := scrape(ctx, "http://"+x.rig.pair.Metrics[i]+"/metrics", map[string]*float64{
			"process_resident_memory_bytes": &s.Resident, "go_goroutines": &s.Goroutines, "process_open_fds": &s.Files}); err != nil {
			return fmt.Errorf("metrics of node %s: %w", name, err)
		}
		x.report.Samples = append(x.report.Samples, s)
	}
	return nil
}

// scrape reads gauges and counters by their name, and their label if they have one: name or
// name{label="value"}.
func scrape(ctx context.Context, url string, want map[string]*float64) (err error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
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
		family, label, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		found := false
		for _, m := range families[family].GetMetric() {
			own := ""
			for _, l := range m.Label {
				own += fmt.Sprintf("%s=%q", l.GetName(), l.GetValue())
			}
			switch {
			case own != label:
			case m.Gauge != nil:
				*to, found = m.Gauge.GetValue(), true
			case m.Counter != nil:
				*to, found = m.Counter.GetValue(), true
			}
		}
		if !found {
			return fmt.Errorf("%s is missing", name)
		}
	}
	return nil
}

// Growth that is allowed from the first third of a run to the last one. The greatest of each are
// compared: buffers and caches fill, and a sample may meet a few sessions more. The memory that
// crowds have taken is given back slowly, so the greatest are what crowds left, and would hide a
// leak that is smaller; of memory the middle ones are compared as well.
const (
	growthFactor     = 1.5
	growthResident   = 96 << 20
	growthMiddle     = 48 << 20
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
	resident := func(s Sample) float64 { return s.Resident }
	for _, k := range []struct {
		name  string
		of    func(Sample) float64
		which string
		at    func(n int) int // which of n sorted ones is compared
		allow float64
	}{
		{"resident memory", resident, "at most", greatest, growthResident},
		{"resident memory", resident, "in the middle", middle, growthMiddle},
		{"goroutines", func(s Sample) float64 { return s.Goroutines }, "at most", greatest, growthGoroutines},
		{"open files", func(s Sample) float64 { return s.Files }, "at most", greatest, growthFiles},
	} {
		pick := func(list []Sample) float64 {
			var all []float64
			for _, s := range list {
				all = append(all, k.of(s))
			}
			slices.Sort(all)
			return all[k.at(len(all))]
		}
		if a, b := pick(first), pick(last); b > a*growthFactor && b > a+k.allow {
			errs = append(errs, fmt.Errorf("%s: %s %.0f in the first third, %.0f in the last", k.name, k.which, a, b))
		}
	}
	return errors.Join(errs...)
}

func greatest(n int) int { return n - 1 }
func middle(n int) int   { return n / 2 }
