package harness_test

import (
	"testing"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

func TestMetricIsFoundByItsSample(t *testing.T) {
	const answer = "# TYPE x counter\nx{event=\"healed\"} 12\nx{event=\"healed_not\"} 13\nx_total 1.5e+06\nbroken 1x\n"
	for sample, want := range map[string]float64{`x{event="healed"}`: 12, "x_total": 1.5e6} {
		if got, err := harness.Metric(answer, sample); err != nil || got != want {
			t.Errorf("%s: %v, %v", sample, got, err)
		}
	}
	for _, sample := range []string{"x", "broken", "none", ""} {
		if got, err := harness.Metric(answer, sample); err == nil {
			t.Errorf("%s: %v", sample, got)
		}
	}
}
