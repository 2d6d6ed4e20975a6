package nodesim

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/dataplane/store"
)

// A flush takes as long as what was written into the page cache, side by side with one of another
// member, and after one of the same member; what was punched is not written.
func TestDiskFlushes(t *testing.T) {
	const home, beside, member = "volumes/default/luns/1.img", "volumes/default/luns/2.img", "volumes/default/x/luns/1.img"
	for _, c := range []struct {
		name   string
		op     string
		second string
		least  time.Duration
	}{
		{"one disk", store.FaultWrite, beside, 2 * time.Second},
		{"two disks", store.FaultWrite, member, time.Second},
		{"holes", store.FaultDiscard, beside, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDisk(1)
			d.speed = speed{read: time.Millisecond, flush: time.Millisecond, bandwidth: 1e6}
			began := time.Now()
			var wg sync.WaitGroup
			for _, path := range []string{home, c.second} {
				if err := d.do(c.op, path, 1e6); err != nil {
					t.Fatal(err)
				}
				wg.Go(func() { _ = d.do(store.FaultSync, path, 0) })
			}
			wg.Wait()
			if took := time.Since(began); took < c.least || took > c.least+100*time.Millisecond {
				t.Errorf("%s: both flushes took %v, and %v was expected", c.name, took, c.least)
			}
		})
	}
}
