package load

import (
	"sync/atomic"
	"time"
)

// Interval is the width of a Series' steps.
const Interval = 100 * time.Millisecond

// seriesSteps bounds a series: six minutes. What comes later is counted in the last step.
const seriesSteps = 3600

// Series is what a load did in each interval of its time, for plots.
type Series struct{ steps []step }

type step struct{ done, errs, longest atomic.Int64 }

// Point is one interval.
type Point struct {
	At      float64 `json:"at_s"`
	Done    int64   `json:"done"`
	Errors  int64   `json:"errors,omitempty"`
	Longest float64 `json:"longest_ms"` // of the operations that ended in it
}

func newSeries() *Series { return &Series{steps: make([]step, seriesSteps)} }

func (s *Series) add(at, took time.Duration, err error) {
	p := &s.steps[min(int(at/Interval), seriesSteps-1)]
	if err != nil {
		p.errs.Add(1)
	} else {
		p.done.Add(1)
	}
	for old := p.longest.Load(); int64(took) > old && !p.longest.CompareAndSwap(old, int64(took)); old = p.longest.Load() {
	}
}

// Points are the intervals up to the last one in which anything ended.
func (s *Series) Points() (list []Point) {
	last := 0
	for i := range s.steps {
		if s.steps[i].done.Load()+s.steps[i].errs.Load() > 0 {
			last = i + 1
		}
	}
	for i := range last {
		p := &s.steps[i]
		list = append(list, Point{At: (time.Duration(i) * Interval).Seconds(), Done: p.done.Load(), Errors: p.errs.Load(),
			Longest: float64(p.longest.Load()) / float64(time.Millisecond)})
	}
	return list
}
