package database

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/cut"
)

// database is a database with its load, on the places of a rig.
type database interface {
	// begin makes it and starts the load.
	begin(r *rig) error
	// acked and asked are how many transactions each writer has had acknowledged, and has begun.
	acked() []uint64
	asked() []uint64
	// weaken has it acknowledge commits from now on that are not durable: a control.
	weaken(r *rig) error
	// end stops load and database, and says what failed under load.
	end(r *rig) error
	// abort ends what a test that has failed has left running. The context of the rig has ended.
	abort()
	// judge starts the database on restored places, and judges it by what it has and by its own
	// tools. What is in before was acknowledged before the snapshots, and no more than what is in
	// after had begun. It stops the database again.
	judge(r *rig, before, after []uint64) findings
}

// findings are the mistakes in a restored database.
type findings struct {
	broken    []string // it did not start, did not answer, or did not stop
	lost      []string // an acknowledged commit is missing
	order     []string // a commit is there without one that was acknowledged before it began
	amcheck   []string
	checksums []string
	integrity []string
	met       map[string]int // no mistakes: what the database had at work
}

// lists are the findings by their names in the report.
func (f findings) lists() map[string][]string {
	return map[string][]string{"broken": f.broken, "lost_commits": f.lost, "order_violations": f.order, "amcheck_errors": f.amcheck,
		"checksum_errors": f.checksums, "integrity_errors": f.integrity}
}

func (f findings) String() string {
	var all []string
	for name, list := range f.lists() {
		for _, s := range list {
			all = append(all, name+": "+s)
		}
	}
	return strings.Join(all, "\n")
}

// taken is a set of snapshots of both places.
type taken struct {
	snaps         [2]string
	group         *cut.Group // nil: the snapshots were taken one after the other
	attempt       uint64
	before, after []uint64
	how           string
	control       string // what it is counted as in the report; empty: it has to be without mistakes
}

// between is how many transactions are acknowledged between two sets of snapshots.
const between = 60

// prove takes group snapshots under load, and as controls pairs of single snapshots, and group
// snapshots of a database that promises more than it keeps. It restores each when the load has
// ended, because a database is found only at the paths that it was made at, and has each judged. It
// returns what the restored group snapshots had at work.
func prove(t *testing.T, name string, r *rig, d database) (met map[string]int) {
	t.Helper()
	t.Cleanup(d.abort)
	r.must(d.begin(r))
	var sets []taken
	var longest time.Duration
	take := func(n int, one func(i int) taken) {
		for i := range n {
			r.must(progress(r, d, between))
			sets = append(sets, one(i))
		}
	}
	take(*cuts, func(i int) taken {
		set, held := r.cut(d)
		set.how, longest = fmt.Sprintf("cut %d", i), max(longest, held)
		return set
	})
	take(*controls, func(i int) taken { return r.oneAfterTheOther(d, i) })
	r.must(d.weaken(r))
	take(*controls, func(int) taken {
		set, _ := r.cut(d)
		set.how, set.control = "control: cut of commits that are not durable", "weak"
		return set
	})
	acked := d.acked()
	r.must(d.end(r))
	for _, p := range r.places {
		r.unmount(p)
	}
	t.Logf("%s: %d cuts, held for %v at most, acknowledged by each writer: %v", name, *cuts, longest.Round(time.Microsecond), acked)
	figures.set(name, "held_ms", float64(longest)/float64(time.Millisecond))
	figures.set(name, "acknowledged", acked)
	met, found := map[string]int{}, map[string]int{}
	for i, set := range sets {
		r.restore(set.snaps, i%2 == 1)
		f := d.judge(r, set.before, set.after)
		for _, p := range r.places {
			r.remove(p)
		}
		if set.group != nil {
			r.must(set.group.End(r.ctx, set.attempt))
		}
		said := f.String()
		if set.control != "" {
			figures.add(name, set.control+"_tries", 1)
			figures.add(name, set.control+"_found", 0)
			if said != "" {
				found[set.control]++
				figures.add(name, set.control+"_found", 1)
			}
			t.Logf("%s: %s, found: %s", name, set.how, first(said))
			continue
		}
		figures.add(name, "cuts", 1)
		if len(f.broken) == 0 {
			figures.add(name, "recovered", 1)
		}
		for kind, list := range f.lists() {
			figures.add(name, kind, len(list))
		}
		for what, n := range f.met {
			met[what] += n
			figures.set(name, what, met[what])
		}
		if said != "" {
			t.Errorf("%s: %s, when %v were acknowledged and %v had begun:\n%s", name, set.how, set.before, set.after, said)
		}
	}
	t.Logf("%s: of %d controls of each kind these were found broken: %v; the cuts had %v", name, *controls, found, met)
	for _, kind := range []string{"control", "weak"} {
		if found[kind] == 0 && *controls > 0 {
			t.Errorf("%s: no %s was found broken: the checks catch nothing", name, kind)
		}
	}
	return met
}

// first is the first line of what was found.
func first(s string) string {
	if s == "" {
		return "nothing"
	}
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// progress waits until n more transactions are acknowledged.
func progress(r *rig, d database, n uint64) error {
	from := sum(d.acked())
	return until(r.ctx, 2*time.Minute, fmt.Sprintf("%d more transactions are acknowledged", n), func() bool { return sum(d.acked()) >= from+n })
}

func sum(list []uint64) (n uint64) {
	for _, v := range list {
		n += v
	}
	return n
}

// bounds are what was acknowledged and begun when an attempt asked the first pair to cut. Both
// pairs hold their LUNs then: what was acknowledged is in the snapshots, and nothing that begins
// later is.
type bounds struct {
	d            database
	mu           sync.Mutex
	attempt      uint64
	acked, asked []uint64
}

// bounded is a client that notes the bounds.
type bounded struct {
	cut.Client
	*bounds
}

// CutGroupSnapshot implements cut.Client.
func (b bounded) CutGroupSnapshot(ctx context.Context, q *targetv1.CutGroupSnapshotRequest, opts ...grpc.CallOption) (*targetv1.CutGroupSnapshotResponse, error) {
	b.mu.Lock()
	if b.attempt != q.Attempt {
		b.attempt, b.acked, b.asked = q.Attempt, b.d.acked(), b.d.asked()
	}
	b.mu.Unlock()
	return b.Client.CutGroupSnapshot(ctx, q, opts...)
}

// cut takes a group snapshot, as the operator does.
func (r *rig) cut(d database) (set taken, held time.Duration) {
	r.t.Helper()
	g := &cut.Group{UUID: uuid.NewString()}
	b := &bounds{d: d}
	for i, p := range r.places {
		set.snaps[i] = uuid.NewString()
		g.Pairs = append(g.Pairs, cut.Pair{Name: r.pairs[p.pair].Name, Client: bounded{r.clients[p.pair], b},
			Members: []*targetv1.CreateSnapshotRequest{{Uuid: set.snaps[i], Name: "s-" + set.snaps[i], SourceLunUuid: p.lun}}})
	}
	set.group = g
	for set.attempt = 1; ; set.attempt++ {
		_, err := g.Begin(r.ctx, set.attempt)
		r.must(err)
		if held, err = g.Cut(r.ctx, set.attempt); err == nil {
			break
		}
		if set.attempt == 20 {
			r.t.Fatalf("attempt %d: %v", set.attempt, err)
		}
	}
	set.before, set.after = b.acked, b.asked
	r.must(until(r.ctx, time.Minute, "the group snapshot is ready", func() bool {
		s, err := g.Look(r.ctx)
		r.must(err)
		if !s.Whole {
			r.t.Fatalf("a group snapshot that was cut is not whole: %+v", s)
		}
		return s.Ready
	}))
	return set, held
}

// oneAfterTheOther is what a group snapshot is not: snapshots of the log and then of the data, at
// once or after some more transactions.
func (r *rig) oneAfterTheOther(d database, i int) taken {
	r.t.Helper()
	set := taken{before: d.acked(), how: "control: data at once after log", control: "control"}
	for _, k := range []int{1, 0} {
		set.snaps[k] = uuid.NewString()
		p := r.places[k]
		_, err := r.clients[p.pair].CreateSnapshot(r.ctx, &targetv1.CreateSnapshotRequest{Uuid: set.snaps[k], Name: "s-" + set.snaps[k], SourceLunUuid: p.lun})
		r.must(err)
		if k == 1 && i%2 == 1 {
			set.how = fmt.Sprintf("control: data %d transactions after log", between)
			r.must(progress(r, d, between))
		}
	}
	set.after = d.asked()
	return set
}
