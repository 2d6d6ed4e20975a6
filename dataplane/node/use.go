package node

import (
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/work"
)

// useReport is what a node knows of its hosts: the chair asks both nodes. Times are ages, since
// clocks differ.
type useReport struct {
	Process uint64                       `json:"process"` // counters begin again with another one
	Hosts   map[string]hostUse           `json:"hosts"`   // that have a session here
	LUNs    map[string]map[string]lunUse `json:"luns"`    // by uuid and host: those used within the slow window
	Work    work.Report                  `json:"work"`
	// Crashed: the process before this one crashed, less than a minute ago.
	Crashed bool `json:"crashed,omitempty"`
}

// hostUse is how a host uses its sessions at a node.
type hostUse struct {
	// Uses: its multipath layer has shown since a login that it knows the path.
	Uses bool          `json:"uses,omitempty"`
	For  time.Duration `json:"for,omitempty"`
}

// lunUse is what a host has read and written through its sessions at a node since the process
// began.
type lunUse struct {
	Bytes uint64        `json:"bytes"`
	Ops   uint64        `json:"ops"`
	Ago   time.Duration `json:"ago"`
}

// crashCounts is how long a process that follows a crash is given no LUN.
const crashCounts = time.Minute

// use reports what hosts do here.
func (n *Node) use() useReport {
	r := useReport{Process: n.own.process, Hosts: map[string]hostUse{}, LUNs: map[string]map[string]lunUse{}}
	for _, s := range n.iscsi.Sessions() {
		if s.Discovery {
			continue
		}
		h := r.Hosts[s.Initiator]
		if !s.UsesPath.IsZero() {
			h.Uses, h.For = true, max(h.For, time.Since(s.UsesPath))
		}
		r.Hosts[s.Initiator] = h
	}
	now, units := n.boottime(), n.md.tables.Load().units
	r.Crashed = n.own.crashed && now-n.own.began < int64(crashCounts)
	r.Work = n.work(now, units)
	for _, e := range units {
		for _, h := range e.hosts.Read() {
			ago := time.Duration(now - h.Last)
			if _, mapped := e.lun.Maps[h.Name]; !mapped || ago > balance.SlowWindow {
				continue
			}
			hosts := r.LUNs[e.lun.UUID]
			if hosts == nil {
				hosts = map[string]lunUse{}
				r.LUNs[e.lun.UUID] = hosts
			}
			hosts[h.Name] = lunUse{Bytes: h.Bytes[count.Own] + h.Bytes[count.Forwarded], Ops: h.Ops[count.Own] + h.Ops[count.Forwarded], Ago: max(ago, 0)}
		}
	}
	return r
}
