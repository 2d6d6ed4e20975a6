package slowdisk

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/load"
)

func (d *Disk) mustReach(t *testing.T, k Knobs, inflight int) (iops float64) {
	t.Helper()
	d.mustSet(t, k)
	iops, err := Parallelism(t.Context(), d, inflight, 10*k.ReadLatency+400*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v per read, %d in flight, at most %d served: %.0f/s", k.ReadLatency, inflight, k.MaxParallel, iops)
	return iops
}

// The lab itself has to be parallel, else a benchmark on it shows the lab. Where other processes
// leave too little of the machine for the rate that 5 ms allow, longer latencies show it; a disk
// that serves one after the other reaches 8 times its rate with none.
func TestLatencyAndParallelism(t *testing.T) {
	d := start(t, Knobs{})
	reached := false
	for _, latency := range []time.Duration{5 * time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond} {
		if reached {
			break
		}
		most := float64(time.Second / latency) // that one reader can do
		one := d.mustReach(t, Knobs{ReadLatency: latency}, 1)
		if one > most {
			t.Errorf("one in flight: %.0f reads a second, at %v each at most %.0f are possible", one, latency, most)
		}
		reached = d.mustReach(t, Knobs{ReadLatency: latency}, 16) >= 8*max(one, most/2)
		if s := d.mustStats(t); s.MaxInFlight < 12 || s.MaxInFlight > 32 {
			t.Errorf("with 16 in flight the disk has seen %d", s.MaxInFlight)
		}
	}
	if !reached {
		t.Error("16 in flight do not reach 8 times the rate of one")
	}
	const latency = 5 * time.Millisecond
	serial := d.mustReach(t, Knobs{ReadLatency: latency, MaxParallel: 1}, 16)
	if most := float64(time.Second/latency) + 1; serial > most {
		t.Errorf("one served at a time, 16 in flight: %.0f reads a second, at most %.0f are possible", serial, most)
	}
	if s := d.mustStats(t); s.MaxServed != 1 || s.MaxInFlight < 12 {
		t.Errorf("one served at a time: %+v", s)
	}
}

func TestParallelismRefuses(t *testing.T) {
	if _, err := Parallelism(t.Context(), &Disk{}, 0, time.Second); err == nil {
		t.Error("took 0 in flight")
	}
}

func TestWriteBandwidthAndLatency(t *testing.T) {
	d := start(t, Knobs{})
	const size, rate = 4 << 20, 16 << 20
	write := func(name string) time.Duration {
		t.Helper()
		f, err := os.Create(filepath.Join(d.Mount, name))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		_, err = f.Write(make([]byte, size))
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	d.mustSet(t, Knobs{WriteBandwidth: rate})
	slow := write("slow")
	if least := size * time.Second / rate; slow < least {
		t.Errorf("%d bytes at %d a second took %v, want at least %v", size, rate, slow, least)
	}
	d.mustSet(t, Knobs{})
	if fast := write("fast"); fast >= slow {
		t.Errorf("without a limit it took %v, with one %v", fast, slow)
	}
	d.mustSet(t, Knobs{WriteLatency: 100 * time.Millisecond})
	if took := write("late"); took < 100*time.Millisecond {
		t.Errorf("writes of 100 ms took %v", took)
	}
	d.mustSet(t, Knobs{FlushLatency: 100 * time.Millisecond})
	if took := write("flush"); took < 100*time.Millisecond {
		t.Errorf("a flush of 100 ms took %v", took)
	}
}

func TestReadBandwidth(t *testing.T) {
	d := start(t, Knobs{})
	const size, rate = 4 << 20, 16 << 20
	f := directFile(t, d, "file", size)
	d.mustSet(t, Knobs{ReadBandwidth: rate})
	begin := time.Now()
	if _, err := f.ReadAt(aligned(t, size), 0); err != nil {
		t.Fatal(err)
	}
	if took, least := time.Since(begin), size*time.Second/rate; took < least {
		t.Errorf("%d bytes at %d a second took %v, want at least %v", size, rate, took, least)
	}
}

// A change lets those go who wait under the old knobs.
func TestKnobsChangeWhileRequestsWait(t *testing.T) {
	d := start(t, Knobs{})
	f := directFile(t, d, "file", 1<<20)
	for name, k := range map[string]Knobs{
		"stuck": {Stuck: true}, "latency": {ReadLatency: time.Hour}, "bandwidth": {ReadBandwidth: 1},
		"one at a time": {MaxParallel: 1, ReadLatency: time.Hour},
	} {
		d.mustSet(t, k)
		const readers = 4
		var wg sync.WaitGroup
		errs := make([]error, readers)
		for i := range readers {
			buf := aligned(t, 4096)
			wg.Go(func() { _, errs[i] = f.ReadAt(buf, int64(i)*4096) })
		}
		before := d.mustStats(t).Reads
		eventually(t, name+": the reads do not come", func() bool { return d.mustStats(t).InFlight == readers })
		if n := d.mustStats(t).Reads; n != before {
			t.Errorf("%s: %d reads have ended", name, n-before)
		}
		d.mustSet(t, Knobs{})
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorKnobsFailRequests(t *testing.T) {
	d := start(t, Knobs{})
	f, buf := directFile(t, d, "file", 1<<20), aligned(t, 4096)
	d.mustSet(t, Knobs{ReadErrors: true})
	_, err := f.ReadAt(buf, 0)
	mustBe(t, err, syscall.EIO)
	d.mustSet(t, Knobs{})
	if _, err := f.ReadAt(buf, 0); err != nil {
		t.Errorf("after the fault: %v", err)
	}
	d.mustSet(t, Knobs{WriteErrors: true})
	_, err = f.WriteAt(buf, 0)
	mustBe(t, err, syscall.EIO)
}

// Errors are where they are asked for, and nowhere else: the filesystem lives on.
func TestErrorsAt(t *testing.T) {
	d := start(t, Knobs{})
	bad, good, buf := directFile(t, d, "bad", 1<<20), directFile(t, d, "good", 1<<20), aligned(t, 4096)
	layout, err := load.LayoutOf(bad)
	if err != nil {
		t.Fatal(err)
	}
	k := Knobs{ReadErrors: true, WriteErrors: true}
	for _, x := range layout {
		k.ErrorsAt = append(k.ErrorsAt, Range{Off: x.Physical, Len: x.Length})
	}
	d.mustSet(t, k)
	_, err = bad.ReadAt(buf, 512<<10)
	mustBe(t, err, syscall.EIO)
	_, err = bad.WriteAt(buf, 512<<10)
	mustBe(t, err, syscall.EIO)
	k.NoSpace = true
	d.mustSet(t, k)
	_, err = bad.WriteAt(buf, 512<<10)
	mustBe(t, err, syscall.ENOSPC)
	_, err = bad.ReadAt(buf, 512<<10)
	mustBe(t, err, syscall.EIO)
	if _, err := good.ReadAt(buf, 0); err != nil {
		t.Error(err)
	}
	if _, err := good.WriteAt(buf, 0); err != nil {
		t.Error(err)
	}
	directFile(t, d, "new", 1<<20)
}

func TestFlushErrors(t *testing.T) {
	d := start(t, Knobs{})
	f, buf := directFile(t, d, "file", 1<<20), aligned(t, 4096)
	d.mustSet(t, Knobs{FlushErrors: true})
	if _, err := f.WriteAt(buf, 0); err != nil {
		t.Fatal(err)
	}
	mustBe(t, f.Sync(), syscall.EIO)
}
