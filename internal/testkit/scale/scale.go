// Package scale measures what a pair with many LUNs costs: how long I/O is paused when the owner of
// all of them dies or hands them over, how often the arbiter is written then, and how much memory
// an idle target holds.
package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Options of a measurement.
type Options struct {
	Dir, Binary string
	LUNs        int // at least as many as are under load
	Callers     int // of which each makes a part of them; default 1
	Events      int // transfers, and kills
	Log         func(format string, args ...any)
}

// Result of a measurement. Pauses are the longest time from submission to acknowledgement of any
// operation that overlaps the event.
type Result struct {
	LUNs          int
	Creation      time.Duration          // of all LUNs, mapped to two hosts
	RSS           [2]int64               // bytes resident in each process: idle, two sessions logged in that have seen every LUN
	Transfer      []time.Duration        // pause of each planned transfer of all LUNs
	Failover      []time.Duration        // pause of each kill of the owner of all LUNs
	ArbiterWrites []uint64               // of each kill, until the survivor serves alone
	hosts         [2][]*targetv1.Mapping // mappings of both hosts, by LUN
}

// loaded is how many LUNs are written to during events, and lunSize how large each is: sparse.
const (
	loaded  = 8
	lunSize = 64 << 20
)

const hostIQN = "iqn.2026-11.storage.gemel.scale:host-"

// Measure runs a pair with so many LUNs, all owned by node a.
func Measure(ctx context.Context, o Options) (r Result, err error) {
	if o.LUNs < loaded || o.Events < 1 {
		return r, fmt.Errorf("scale: %d LUNs and %d events: at least %d and 1", o.LUNs, o.Events, loaded)
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	r.LUNs = o.LUNs
	p, err := harness.New(harness.Options{Dir: o.Dir, Binary: o.Binary, Args: []string{"--log-level", "warn"}})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Start(ctx); err != nil {
		return r, err
	}
	if err := r.create(ctx, p, max(o.Callers, 1)); err != nil {
		return r, err
	}
	o.Log("%d LUNs: made and mapped to two hosts in %v", o.LUNs, r.Creation.Round(time.Millisecond))
	if err := r.memory(ctx, p); err != nil {
		return r, err
	}
	o.Log("%d LUNs: resident, idle: %.1f and %.1f MiB", o.LUNs, MiB(r.RSS[0]), MiB(r.RSS[1]))
	l, err := newLoad(ctx, r.hosts[0][:loaded])
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for i := range o.Events {
		for _, to := range []int{1, 0} {
			pause, err := r.transfer(ctx, p, l, to)
			if err != nil {
				return r, fmt.Errorf("transfer %d to %s: %w", i+1, harness.Names[to], err)
			}
			o.Log("%d LUNs: transfer %d to %s: longest write %v", o.LUNs, i+1, harness.Names[to], pause.Round(10*time.Microsecond))
		}
	}
	for i := range o.Events {
		if err := r.failover(ctx, p, l); err != nil {
			return r, fmt.Errorf("kill %d: %w", i+1, err)
		}
		o.Log("%d LUNs: kill %d: longest write %v, %d arbiter writes", o.LUNs, i+1, r.Failover[i].Round(10*time.Microsecond), r.ArbiterWrites[i])
	}
	return r, nil
}

// MiB is bytes as a number for people.
func MiB(n int64) float64 { return float64(n) / (1 << 20) }

// Median of some durations.
func Median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// insist repeats a call, on either node, while there is none that can do it: a machine that is
// paused for longer than the lease makes a pair part, which is not what is measured here.
func insist(ctx context.Context, p *harness.Pair, call func(targetv1.TargetServiceClient) error) error {
	var err error
	for i := 0; ; i++ {
		if err = call(p.Client(i % len(harness.Names))); err == nil || status.Code(err) != codes.Unavailable {
			return err
		}
		if werr := p.WaitInSync(ctx); werr != nil {
			return errors.Join(err, werr)
		}
	}
}

// moveAll gives all LUNs to a node, and makes sure of it.
func (r *Result) moveAll(ctx context.Context, p *harness.Pair, to int) error {
	req := &targetv1.TransferOwnershipRequest{All: true, ToNode: harness.Names[to]}
	if err := insist(ctx, p, func(c targetv1.TargetServiceClient) error { _, err := c.TransferOwnership(ctx, req); return err }); err != nil {
		return err
	}
	s, err := p.Status(ctx, to)
	if err == nil && len(s.OwnedLuns) != r.LUNs {
		err = fmt.Errorf("node %s owns %d of %d LUNs", harness.Names[to], len(s.OwnedLuns), r.LUNs)
	}
	return err
}

// settled is how long a process must be idle before its memory is read: its runtime gives back what
// it does not need.
const settled = 5 * time.Second

// memory logs both hosts in at both nodes, lets them look at every LUN and reads what the processes
// hold after a while.
func (r *Result) memory(ctx context.Context, p *harness.Pair) error {
	for _, maps := range r.hosts {
		for _, portal := range p.Portals() {
			s, err := initiator.Login(ctx, initiator.SessionConfig{InitiatorName: maps[0].HostIqn, Target: p.IQN(), Portal: portal})
			if err != nil {
				return err
			}
			defer s.Close()
			for _, m := range maps {
				if err := look(ctx, s, uint16(m.Lun)); err != nil {
					return fmt.Errorf("LUN %d at %s: %w", m.Lun, portal, err)
				}
			}
		}
	}
	idle := time.NewTimer(settled)
	defer idle.Stop()
	select {
	case <-idle.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for i := range r.RSS {
		var err error
		if r.RSS[i], err = resident(p.PID(i)); err != nil {
			return err
		}
	}
	return nil
}

// look is what a host does with a LUN that it finds: TEST UNIT READY until unit attentions are
// delivered, then READ (16).
func look(ctx context.Context, s *initiator.Session, lun uint16) error {
	for range 8 {
		res, err := s.Execute(ctx, lun, make([]byte, 6), nil, nil)
		if err != nil {
			return err
		}
		if res.Status == initiator.StatusGood {
			read := make([]byte, 16)
			read[0], read[13] = 0x88, 8
			if res, err = s.Execute(ctx, lun, read, nil, make([]byte, 8*512)); err == nil {
				err = res.Err(read[0])
			}
			return err
		}
		if k := res.Sense().Key; k != initiator.KeyUnitAttention {
			return res.Err(0)
		}
	}
	return errors.New("unit attentions do not end")
}

// resident is a process's VmRSS in bytes.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		var kb int64
		if _, err := fmt.Sscanf(l, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d: no VmRSS", pid)
}

func (r *Result) transfer(ctx context.Context, p *harness.Pair, l *load, to int) (time.Duration, error) {
	if err := l.more(ctx, opsAround); err != nil {
		return 0, err
	}
	l.mark()
	if err := r.moveAll(ctx, p, to); err != nil {
		return 0, err
	}
	if err := l.more(ctx, opsAround); err != nil {
		return 0, err
	}
	r.Transfer = append(r.Transfer, l.worst())
	return l.worst(), nil
}

// failover kills node a, which owns everything, and brings it and the LUNs back.
func (r *Result) failover(ctx context.Context, p *harness.Pair, l *load) error {
	if err := l.more(ctx, opsAround); err != nil {
		return err
	}
	if err := p.WaitInSync(ctx); err != nil {
		return err
	}
	before, err := arbiterVersion(p)
	if err != nil {
		return err
	}
	l.mark()
	if err := p.Kill(0); err != nil {
		return err
	}
	if err := l.more(ctx, opsAround); err != nil {
		return err
	}
	if err := p.WaitPhase(ctx, 1, targetv1.Phase_PHASE_ALONE); err != nil {
		return err
	}
	r.Failover = append(r.Failover, l.worst())
	after, err := arbiterVersion(p)
	if err != nil {
		return err
	}
	r.ArbiterWrites = append(r.ArbiterWrites, after-before)
	if err := p.StartNode(0); err != nil {
		return err
	}
	if err := p.WaitInSync(ctx); err != nil {
		return err
	}
	return r.moveAll(ctx, p, 0)
}

// arbiterVersion counts the writes of the record.
func arbiterVersion(p *harness.Pair) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(p.Dir, "record.json"))
	if err != nil {
		return 0, err
	}
	var v struct{ Version uint64 }
	err = json.Unmarshal(b, &v)
	return v.Version, err
}
