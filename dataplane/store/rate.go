package store

import (
	"math"
	"time"
)

const (
	// rateEvery is how much time at work one sample of the rate covers at least.
	rateEvery = 100 * time.Millisecond
	// rateTime is the time at work after which 1/e of what was known before still counts. A sample
	// that took long counts accordingly: a disk that becomes slow has few of them.
	rateTime = 350 * time.Millisecond
)

// rate is what a disk writes out, in bytes a second, seen only while it has enough to do.
type rate struct {
	perSecond float64
	out       int64         // bytes that it has been given and has not written yet
	bytes     int64         // written in the sample that has begun
	took      time.Duration // at work in that sample, before since
	since     time.Time     // the disk has been at work since; zero: it is not
}

func (r *rate) begin(now time.Time) { r.since = now }

func (r *rate) end(now time.Time) {
	r.took += now.Sub(r.since)
	r.since = time.Time{}
}

// wrote counts bytes that it was given and has written.
func (r *rate) wrote(bytes int64, now time.Time) {
	r.out = max(r.out-bytes, 0)
	r.bytes += bytes
	took := r.took + now.Sub(r.since)
	if took < rateEvery {
		return
	}
	sample := float64(r.bytes) / took.Seconds()
	if r.perSecond == 0 {
		r.perSecond = sample
	}
	r.perSecond = sample + (r.perSecond-sample)*math.Exp(-took.Seconds()/rateTime.Seconds())
	r.bytes, r.took, r.since = 0, 0, now
}

// look reports whether the disk must be slower than it was: even if it had written all that it was
// given, it would have taken longer than it used to. What it was given may take it long, and until
// then no sample would tell.
func (r *rate) look(now time.Time) bool {
	took := r.took + now.Sub(r.since)
	if took < 2*rateEvery || r.perSecond == 0 {
		return false
	}
	most := float64(r.bytes+r.out) / took.Seconds()
	if most >= r.perSecond {
		return false
	}
	r.perSecond = most
	return true
}
