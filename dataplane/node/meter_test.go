package node

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/work"
)

// A node reports the disk that it finds under its backing volume, leaves it out while its counters
// cannot be read, and goes on without one that it does not find.
func TestReportHasTheDisksThatAreKnown(t *testing.T) {
	p := newTestPair(t)
	broken, dirs := false, []string(nil)
	p.cfg[0].Outside.Disk = func(dir string) (func() (work.Disk, error), error) {
		dirs = append(dirs, dir)
		return func() (work.Disk, error) {
			if broken {
				return work.Disk{}, errors.New("no counters")
			}
			return work.Disk{}, nil
		}, nil
	}
	p.cfg[1].Outside.Disk = func(string) (func() (work.Disk, error), error) { return nil, errors.New("no disk") }
	p.startBoth()
	report := func(i int) work.Report {
		n := p.nodes[i]
		n.work(n.boottime(), n.md.tables.Load().units)
		time.Sleep(10 * time.Millisecond)
		return n.work(n.boottime(), n.md.tables.Load().units)
	}
	if r := report(0); len(r.Disks) != 1 {
		t.Errorf("%+v", r)
	}
	if r := report(1); len(r.Disks) != 0 || r.CPUs == 0 {
		t.Errorf("%+v", r)
	}
	w := &p.nodes[0].meter
	w.mu.Lock()
	broken = true
	w.mu.Unlock()
	if r := report(0); len(r.Disks) != 0 {
		t.Errorf("%+v", r)
	}
	w.mu.Lock()
	broken = false
	defer w.mu.Unlock()
	if !slices.Equal(dirs, []string{p.nodes[0].store.Volumes()[0].Dir()}) {
		t.Errorf("disks were looked for under %v", dirs)
	}
}

// Reads that the page cache answers take no time of the disk; others do, as long as they are at it.
func TestDiskTimeIsThatOfReadsPastTheCache(t *testing.T) {
	p := newTestPair(t)
	var cached atomic.Bool
	for i := range p.cfg {
		p.cfg[i].Cached = func(string, int64, int64) bool { return cached.Load() }
		p.cfg[i].Faults = func(op, _ string, _, _ int64) error {
			if op == store.FaultRead && !cached.Load() {
				time.Sleep(3 * time.Millisecond)
			}
			return nil
		}
	}
	p.startBoth()
	id, m := p.lun(8<<20, "a")
	d := p.device(m, onlyBy(p, 0))
	took := func() time.Duration { return p.nodes[0].entryOf(id).counts.Disk() }
	read := func() {
		t.Helper()
		for range 10 {
			if _, err := d.ReadAt(p.ctx, make([]byte, 4096), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	cached.Store(true)
	before := took()
	if read(); took() > before+3*time.Millisecond { // a reader may find it in the cache as well
		t.Errorf("reads of the page cache were at the disk for %v", took()-before)
	}
	cached.Store(false)
	if read(); took() < before+30*time.Millisecond {
		t.Errorf("ten reads of 3 ms each were at the disk for %v", took()-before)
	}
	if _, err := d.WriteAt(p.ctx, make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if other := p.nodes[1].entryOf(id).counts.Disk(); other != 0 {
		t.Errorf("at the node that does not own it: %v", other)
	}
}

// Without a simulation, the disk is the block device under the directory; a filesystem in memory
// has none.
func TestRealDisk(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err == nil && st.Type == unix.TMPFS_MAGIC {
		if _, err := realDisk("/dev/shm"); err == nil {
			t.Error("a filesystem in memory has a disk")
		}
	}
	dir := t.TempDir()
	read, err := realDisk(dir)
	if err != nil {
		t.Skipf("no disk under %s: %v", dir, err)
	}
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before, err := read()
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if _, err := f.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := read(); err != nil || after.Busy <= before.Busy || after.All <= before.All {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
}
