package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Crowds of hosts that ask for more than a node has memory: by many commands of 8 MiB, or by writes
// of which they send a part. The processes must live, keep within their budget
// (docs/decisions/0041), serve the other hosts meanwhile and give everything back.

const (
	crowdCommand = 8 << 20 // bytes: the most that a command may have
	crowdDepth   = 4       // commands of a guest
	pressing     = 24      // guests on each path that send and take all
	halfWriters  = 32      // guests on each path that send half

	// crowdServed is how long the other hosts may have to wait, all of them once, beside a crowd.
	crowdServed = 20 * time.Second
	// crowdLeft is how long it may take until nothing is left of a crowd that has gone.
	crowdLeft = 20 * time.Second
	// crowdBeyond is what a session may get beyond the budget: one small command or a first burst,
	// and answers that are queued (0041).
	crowdBeyond = 1 << 20
	// crowdRest is what may be in use of commands' memory beside a crowd.
	crowdRest = 16 << 20
	// crowdOthers is how many sessions more the other hosts may have after a crowd.
	crowdOthers = 12
)

// usage is what a node says of its sessions.
type usage struct{ sessions, used, limit float64 }

func (r *rig) usage(ctx context.Context, i int) (u usage, err error) {
	err = scrape(ctx, "http://"+r.pair.Metrics[i]+"/metrics", map[string]*float64{"gemel_iscsi_sessions": &u.sessions,
		`gemel_iscsi_memory_bytes{kind="used"}`: &u.used, `gemel_iscsi_memory_bytes{kind="limit"}`: &u.limit})
	return u, err
}

// crowd has many guests at both nodes for a time. alone says that this is all that happens: then it
// is judged.
func (r *rig) crowd(ctx context.Context, f Fault, alone bool) {
	ctx = context.WithoutCancel(ctx)
	var before [2]usage
	for i, name := range harness.Names {
		if !alone {
			break
		}
		err := forgetPeak(r.pair.Serving(i))
		if err == nil {
			before[i], err = r.usage(ctx, i)
		}
		if err != nil {
			r.rec.failed("%s: node %s: %w", f.Kind, name, err)
			return
		}
	}
	c := r.invite(ctx, f)
	end := time.Now().Add(f.For)
	if alone {
		_ = wait(ctx, f.For/2)
		served, cancel := context.WithTimeoutCause(ctx, crowdServed, fmt.Errorf("not served for %v", crowdServed))
		if err := r.rec.all(served); err != nil {
			r.rec.failed("%s: other hosts: %w", f.Kind, err)
		}
		cancel()
	}
	for {
		if alone {
			r.inBudget(ctx, f.Kind) // once at least, also if the others were served late
		}
		if !time.Now().Before(end) {
			break
		}
		_ = wait(ctx, min(200*time.Millisecond, time.Until(end)))
	}
	c.disperse()
	sessions, through := c.sessions.Load(), c.through.Load()
	r.rec.guests.Add(sessions)
	r.rec.crowded.Add(through)
	if !alone {
		return
	}
	fmt.Fprintf(r.w, "  %s: %d sessions, %d commands done, %d refused\n", f.Kind, sessions, through, c.refused.Load())
	if sessions == 0 || f.Kind == MemoryPressure && through == 0 || f.Kind == HalfWrites && through > 0 {
		r.rec.failed("%s: %d sessions, of whose commands %d were done: that was no trial", f.Kind, sessions, through)
	}
	for i, name := range harness.Names {
		if err := r.recovered(ctx, i, before[i]); err != nil {
			r.rec.failed("%s: node %s: %w", f.Kind, name, err)
		}
	}
}

// gathering is a crowd that is there.
type gathering struct {
	sessions, through, refused atomic.Int64 // logins, commands that were done, and that ended with an error

	leave context.CancelFunc
	wg    sync.WaitGroup
}

// invite has guests log in and begin, side by side. One whose session is ended by the node comes
// again.
func (r *rig) invite(ctx context.Context, f Fault) *gathering {
	each, use := pressing, (*guest).press
	if f.Kind == HalfWrites {
		each, use = halfWriters, (*guest).hang
	}
	c := &gathering{}
	ctx, c.leave = context.WithCancel(ctx)
	for path := range harness.Names {
		for n := range each {
			rng := rand.New(rand.NewPCG(uint64(f.N), uint64(n*2+path)))
			c.wg.Go(func() {
				for ctx.Err() == nil {
					g, err := newGuest(ctx, c, r.crowded, path, n)
					if err != nil {
						_ = wait(ctx, 50*time.Millisecond) // the node is away
						continue
					}
					c.sessions.Add(1)
					end := context.AfterFunc(ctx, func() { _ = g.conn.Close() })
					use(g, rng, r.bulk.BlockSize())
					end()
					_ = g.conn.Close()
				}
			})
		}
	}
	return c
}

// disperse sends a crowd away: its sessions are closed in the midst of what they do.
func (c *gathering) disperse() {
	c.leave()
	c.wg.Wait()
}

// inBudget looks at what both nodes use for commands.
func (r *rig) inBudget(ctx context.Context, k Kind) {
	for i, name := range harness.Names {
		u, err := r.usage(ctx, i)
		if err != nil {
			r.rec.failed("%s: metrics of node %s: %w", k, name, err)
			continue
		}
		r.rec.most(&r.rec.commandMemory, int64(u.used))
		if most := overBudget(u); most > 0 {
			r.rec.failed("%s: node %s holds %.0f bytes for commands of %.0f sessions, and may hold %.0f", k, name, u.used, u.sessions, most)
		}
	}
}

// overBudget is the most that may be held if that is less than what is; 0 if all is well.
func overBudget(u usage) float64 {
	if most := u.limit + u.sessions*crowdBeyond; u.used > most {
		return most
	}
	return 0
}

// recovered looks at the process of a node after a crowd: it has not been larger than it may be,
// and what the crowd took is given back.
func (r *rig) recovered(ctx context.Context, i int, before usage) error {
	size, err := peak(r.pair.Serving(i))
	if err != nil {
		return err
	}
	r.rec.most(&r.rec.resident, size)
	if size > memoryLimit {
		return fmt.Errorf("resident memory reached %d bytes, more than %d", size, int64(memoryLimit))
	}
	ctx, cancel := context.WithTimeout(ctx, crowdLeft)
	defer cancel()
	return harness.Wait(ctx, "nothing is left of the crowd", func() (bool, string) {
		u, err := r.usage(ctx, i)
		if err != nil {
			return false, err.Error()
		}
		return u.sessions <= before.sessions+crowdOthers && u.used <= before.used+crowdRest,
			fmt.Sprintf("%.0f sessions and %.0f bytes of commands, before %.0f and %.0f", u.sessions, u.used, before.sessions, before.used)
	})
}

// somewhere draws where a command of a guest is.
func somewhere(rng *rand.Rand, size int) (block int64, blocks int) {
	return rng.Int64N(floodLUN/crowdCommand) * crowdCommand / int64(size), crowdCommand / size
}

// press keeps commands under way, reads and writes in turns, until the session ends.
func (g *guest) press(rng *rand.Rand, size int) {
	under, n := 0, rng.IntN(2)
	for {
		for under < crowdDepth && g.window() {
			block, blocks := somewhere(rng, size)
			var err error
			if n++; n%2 == 0 {
				err = g.read(block, blocks, crowdCommand)
			} else {
				err = g.write(block, blocks, crowdCommand, guestOffers, true)
			}
			if err != nil {
				return
			}
			under++
		}
		over, err := g.step()
		if err != nil {
			return
		}
		if over {
			under--
		}
	}
}

// hang announces writes and sends a part of each: of some less than the target has to take unasked,
// of others the whole first burst and a part of what it asks for then. After that it only answers
// pings.
func (g *guest) hang(rng *rand.Rand, size int) {
	g.half = true
	for n := 0; n < crowdDepth && g.window(); n++ {
		block, blocks := somewhere(rng, size)
		immediate, final := guestOffers, true
		if n%2 == 0 {
			immediate, final = guestOffers/4, false
		}
		if err := g.write(block, blocks, crowdCommand, immediate, final); err != nil {
			return
		}
	}
	for {
		if _, err := g.step(); err != nil {
			return
		}
	}
}
