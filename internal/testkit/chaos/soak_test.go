package chaos

import (
	"slices"
	"strings"
	"testing"
)

func TestFlatCatchesGrowth(t *testing.T) {
	var samples []Sample
	for i := range 90 {
		samples = append(samples, Sample{At: float64(i), Resident: 100 << 20, Goroutines: 50 + float64(i%7), Files: 80})
	}
	if err := flat(samples); err != nil {
		t.Error(err)
	}
	if err := flat(samples[:minSamples-1]); err == nil {
		t.Error("a handful of samples proves something")
	}
	for name, grow := range map[string]func(*Sample, float64){
		"memory":     func(s *Sample, i float64) { s.Resident += i * (4 << 20) },
		"goroutines": func(s *Sample, i float64) { s.Goroutines += i * 3 },
		"open files": func(s *Sample, i float64) { s.Files += i * 2 },
	} {
		list := slices.Clone(samples)
		for i := range list {
			grow(&list[i], float64(i))
		}
		if err := flat(list); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s that grow: %v", name, err)
		}
	}
}

// What a crowd has left in memory, now and then, is no growth, and hides none.
func TestFlatBesideCrowds(t *testing.T) {
	var samples []Sample
	for i := range 120 {
		s := Sample{Resident: 80 << 20, Goroutines: 60, Files: 80}
		if i%4 == 0 {
			s.Resident = 420 << 20
		}
		samples = append(samples, s)
	}
	if err := flat(samples); err != nil {
		t.Error(err)
	}
	for i := range samples {
		if i%4 != 0 {
			samples[i].Resident += float64(i << 20)
		}
	}
	if err := flat(samples); err == nil || !strings.Contains(err.Error(), "in the middle") {
		t.Errorf("120 MiB have leaked: %v", err)
	}
}

// Processes have to get old in calm phases, and everything else has to come there.
func TestCalmKindsEndNothing(t *testing.T) {
	calm := calmKinds(Kinds)
	if len(calm)+len(ending) != len(Kinds) || slices.Contains(calm, Kill) || !slices.Contains(calm, Overload) ||
		!slices.Contains(calm, MemoryPressure) || slices.Contains(calm, ReplacedDisk) {
		t.Errorf("%v", calm)
	}
}
