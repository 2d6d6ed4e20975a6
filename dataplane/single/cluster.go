package single

import (
	"sync"
	"sync/atomic"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/alua"
	"github.com/gemel-storage/gemel/internal/hostprofile"
)

// Cluster is a scsi.Cluster without a pair: units in memory, seen by every host under the same
// numbers, and a metadata log that is a mutex. With several servers it is several target ports on
// the same units. Add units and servers before anything is served.
type Cluster struct {
	units   []*scsi.Unit // by LUN; nil: none
	servers []*scsi.Server
	mu      sync.Mutex // one change at a time
}

// AddUnit maps a unit under the next number.
func (c *Cluster) AddUnit(u *scsi.Unit) { c.units = append(c.units, u) }

// AddServer makes the device server of one more port.
func (c *Cluster) AddServer(cfg scsi.Config) *scsi.Server {
	cfg.Port = uint16(len(c.servers) + 1)
	s := scsi.NewServer(c, cfg)
	c.servers = append(c.servers, s)
	return s
}

// Lookup implements scsi.Cluster.
func (c *Cluster) Lookup(_ string, lun uint16) *scsi.Unit {
	if int(lun) >= len(c.units) {
		return nil
	}
	return c.units[lun]
}

// Access implements scsi.Cluster: what is not in memory is nowhere.
func (c *Cluster) Access() scsi.Access { return scsi.AccessReady }

// SinglePath implements scsi.Cluster: hosts are recognised by their names.
func (c *Cluster) SinglePath(host string) bool {
	p, _ := hostprofile.Of(host)
	return p == hostprofile.QEMU
}

// LUNs implements scsi.Cluster.
func (c *Cluster) LUNs(_ string, to []uint16) []uint16 {
	for i, u := range c.units {
		if u != nil {
			to = append(to, uint16(i))
		}
	}
	return to
}

// Groups implements scsi.Cluster: every port is as good as the others.
func (c *Cluster) Groups(*scsi.Unit) alua.Report {
	r := alua.Report{TransitionTime: 10}
	for i := range c.servers {
		n := uint16(i + 1)
		r.Groups = append(r.Groups, alua.Group{Tag: n, State: alua.Optimized, Preferred: i == 0, Status: alua.Implicit,
			Ports: []uint16{n}})
	}
	return r
}

// Propose implements scsi.Cluster.
func (c *Cluster) Propose(u *scsi.Unit, nexus scsi.NexusID, change scsi.Change, done func(scsi.Outcome)) {
	c.mu.Lock()
	var out scsi.Outcome
	var aborts []scsi.NexusID
	switch {
	case change.PROut != nil:
		var next *scsi.PRState
		var uas []scsi.PRUA
		next, out, uas, aborts = scsi.ApplyPROut(u.PR(), nexus, change.PROut)
		u.SetPR(next)
		for _, a := range uas {
			c.Raise(u, nil, func(id scsi.NexusID) bool { return id == a.Nexus }, a.Attention)
		}
	case change.ModeSelect != nil:
		next, o, changed := scsi.ApplyModeSelect(u.Mode(), change.ModeSelect)
		out = o
		u.SetMode(next)
		if changed {
			c.Raise(u, &nexus, nil, scsi.AttnModeChanged)
		}
	}
	c.mu.Unlock()
	if len(aborts) == 0 {
		done(out)
		return
	}
	w := newCountdown(len(aborts)*len(c.servers), func() { done(out) })
	for _, s := range c.servers {
		for _, n := range aborts {
			s.AbortNexus(n, u, w.drop)
		}
	}
}

// Raise establishes a unit attention through every port.
func (c *Cluster) Raise(u *scsi.Unit, except *scsi.NexusID, only func(scsi.NexusID) bool, a scsi.Attention) {
	for _, s := range c.servers {
		s.RaiseUA(u, except, only, byte(a>>8), byte(a))
	}
}

// Reset implements scsi.Cluster.
func (c *Cluster) Reset(u *scsi.Unit, scope scsi.ResetScope, by scsi.NexusID, done func(ok bool)) {
	w := newCountdown(len(c.servers), func() {
		a := scsi.AttnUnitReset
		if scope == scsi.ResetTarget {
			a = scsi.AttnTargetReset
		}
		c.Raise(u, &by, nil, a)
		done(true)
	})
	for _, s := range c.servers {
		s.AbortUnitFor(u, by, w.drop)
	}
}

// countdown calls done at the n-th drop.
type countdown struct {
	left atomic.Int64
	done func()
}

func newCountdown(n int, done func()) *countdown {
	c := &countdown{done: done}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) drop() {
	if c.left.Add(-1) == 0 {
		c.done()
	}
}
