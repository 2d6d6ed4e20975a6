package store

import (
	"testing"
	"time"
)

// The rate follows a disk that becomes slow within what it was given last, and one that becomes
// fast again within a few samples.
func TestRateFollowsTheDisk(t *testing.T) {
	const mib = 1 << 20
	var r rate
	now := time.Unix(1, 0)
	write := func(n int, bytes int64, took time.Duration) {
		for range n {
			r.out += bytes
			now = now.Add(took)
			r.wrote(bytes, now)
		}
	}
	r.begin(now)
	write(20, 50*mib, 100*time.Millisecond)
	if r.perSecond < 499*mib || r.perSecond > 501*mib {
		t.Fatalf("%.0f bytes a second of a disk that writes 500 MiB", r.perSecond)
	}
	r.out += 16 * mib
	if now = now.Add(150 * time.Millisecond); r.look(now) {
		t.Error("what takes 150 ms is taken for a slow disk")
	}
	if now = now.Add(650 * time.Millisecond); !r.look(now) || r.perSecond > 20*mib {
		t.Errorf("%.0f bytes a second of a disk that has not written 16 MiB in 800 ms", r.perSecond)
	}
	now = now.Add(533 * time.Millisecond)
	if r.wrote(16*mib, now); r.perSecond < 12*mib || r.perSecond > 13*mib || r.out != 0 {
		t.Errorf("%.0f bytes a second of a disk that wrote 16 MiB in 1333 ms; %d are under way", r.perSecond, r.out)
	}
	r.end(now)
	now = now.Add(time.Hour)
	r.begin(now) // the hour does not count
	write(10, 50*mib, 100*time.Millisecond)
	if r.perSecond < 450*mib {
		t.Errorf("%.0f bytes a second of a disk that writes 500 MiB again since a second", r.perSecond)
	}
	write(1, 10*mib, time.Second)
	if r.perSecond > 50*mib {
		t.Errorf("%.0f bytes a second after a second in which it wrote 10 MiB", r.perSecond)
	}
}
