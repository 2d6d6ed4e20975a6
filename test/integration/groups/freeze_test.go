package groups

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// scattered is how many single blocks the image of a LUN is made of.
const scattered = 5000

// load writes all over every LUN, and keeps the longest time that a write took.
type load struct {
	stop  atomic.Bool
	wg    sync.WaitGroup
	worst atomic.Int64
	ops   atomic.Uint64
}

func (r *rig) load() *load {
	l := &load{}
	for i, m := range r.members {
		l.wg.Go(func() {
			rnd, b := rand.New(rand.NewPCG(*seed, uint64(i))), make([]byte, block)
			for !l.stop.Load() {
				begun := time.Now()
				if _, err := m.dev.WriteAt(r.ctx, b, rnd.Int64N(1<<30/block)*block); err != nil {
					if !l.stop.Load() {
						r.t.Errorf("LUN %d: %v", i, err)
					}
					return
				}
				l.ops.Add(1)
				took := int64(time.Since(begun))
				for was := l.worst.Load(); took > was && !l.worst.CompareAndSwap(was, took); was = l.worst.Load() {
				}
			}
		})
	}
	r.t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	l.stop.Store(true)
	l.wg.Wait()
}

// fragments makes the images of the LUNs fragmented.
func (r *rig) fragments() {
	r.t.Helper()
	var wg sync.WaitGroup
	for i, m := range r.members {
		wg.Go(func() {
			rnd, b := rand.New(rand.NewPCG(*seed, 100+uint64(i))), make([]byte, block)
			for range scattered {
				if _, err := m.dev.WriteAt(r.ctx, b, rnd.Int64N(1<<30/block)*block); err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// How long writes are held for a cut does not depend on what images look like. A command that is
// at work when its LUN is held has to end first, so the hold is as long as a write takes: the last
// case has twelve more LUNs that are written to meanwhile, and are not held.
func TestFreeze(t *testing.T) {
	r := newRig(t, 5*time.Minute+time.Duration(*freeze)*time.Minute, 2, 16, 1<<30)
	r.fragments()
	all := r.members
	var own []member // LUNs of the first pair
	for _, m := range all {
		if m.pair == 0 && len(own) < 4 {
			own = append(own, m)
		}
	}
	for _, c := range []struct {
		name          string
		group, loaded []member
	}{{"16_luns_2_pairs", all, all}, {"4_luns_1_pair", own, own}, {"4_luns_beside_12", own, all}} {
		r.members = c.loaded
		l := r.load()
		r.members = c.group
		pause(r.ctx, time.Second)
		var worst, control, writes time.Duration
		for i := range *freeze {
			l.worst.Store(0)
			pause(r.ctx, time.Second)
			control = max(control, time.Duration(l.worst.Load()))
			l.worst.Store(0)
			held, attempts := r.takes(len(c.group))
			worst, writes = max(worst, held), max(writes, time.Duration(l.worst.Load()))
			t.Logf("%s, cut %d: held for %v in attempt %d", c.name, i, held.Round(time.Microsecond), attempts)
		}
		l.end()
		name := "freeze_ms_" + c.name
		figures.set(name, float64(worst)/float64(time.Millisecond))
		figures.set(name+"_longest_write", float64(writes)/float64(time.Millisecond))
		figures.set(name+"_longest_write_before", float64(control)/float64(time.Millisecond))
		if l.ops.Load() < 100 {
			t.Errorf("%s: only %d writes", c.name, l.ops.Load())
		}
	}
	if n := r.holds(); n > 0 {
		t.Errorf("%d holds are left", n)
	}
}

// takes takes a group and deletes it, while it is copied: what is measured is its hold.
func (r *rig) takes(luns int) (held time.Duration, attempt uint64) {
	r.t.Helper()
	g, _ := r.group(luns)
	for attempt = 1; ; attempt++ {
		_, err := g.Begin(r.ctx, attempt)
		r.must(err)
		if held, err = g.Cut(r.ctx, attempt); err == nil {
			break
		}
		if attempt == 20 {
			r.t.Fatalf("attempt %d: %v", attempt, err)
		}
	}
	s, err := g.Look(r.ctx)
	r.must(err)
	if !s.Whole {
		r.t.Errorf("%+v", s)
	}
	r.must(g.End(r.ctx, attempt))
	return held, attempt
}

// holds counts the holds that nodes have when nothing is cut any more. Each ends by itself.
func (r *rig) holds() (n int) {
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	_ = harness.Wait(ctx, "no holds", func() (bool, string) {
		n = 0
		for _, p := range r.pairs {
			for i := range p.Metrics {
				resp, err := http.Get("http://" + p.Metrics[i] + "/metrics")
				if err != nil {
					r.t.Error(err)
					continue
				}
				b, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				v, merr := harness.Metric(string(b), "gemel_group_holds")
				if err != nil || merr != nil {
					r.t.Error(err, merr)
				}
				n += int(v)
			}
		}
		return n == 0, fmt.Sprint(n)
	})
	return n
}
