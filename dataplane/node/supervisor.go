package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/supervise"
)

// This node and the supervisors of both nodes (docs/pair.md, R2b).

var (
	descCrashes    = desc("supervisor_crashes_total", "Processes of this node that crashed since its supervisor started; absent without a supervisor.")
	descSupervisor = desc("peer_supervisor_connected", "1 while this node is connected to the other node's supervisor, which reports a crash of the other node at once; absent if no supervisor is configured.")
)

// peerSupervisor is how this node hears from the supervisor of the other node which of its
// processes have ended; nil if no address is configured.
func (n *Node) peerSupervisor() *supervise.Follower {
	if n.cfg.PeerSupervisor == "" {
		return nil
	}
	f := &supervise.Follower{Cluster: n.cfg.Cluster, Pair: n.cfg.Pair, Node: n.self.Peer().String(), Addr: n.cfg.PeerSupervisor, Dial: n.cfg.Outside.Dial, Logger: n.log,
		Ended: func(list []pair.Incarnation) {
			n.do(func(m *pair.Machine, now int64) { m.PeerEnded(now, list) })
		},
		Blames: func(list []supervise.Blame) { n.blamed(list, false) }}
	if n.tls != nil {
		f.TLS = n.peerTLS()
	}
	return f
}

// tellOfCrash says how the process before this one ended, if it crashed.
func (n *Node) tellOfCrash() {
	if l := n.cfg.Life; l != nil && l.Last != "" {
		n.log.Error("the former process of this node crashed", "ended", l.Last, "crashes", l.Crashes)
		n.event("crash", "the former process of this node crashed ("+l.Last+"), and was started again; the log of that process names the cause")
	}
}

func (n *Node) collectSupervisors(count func(d *prometheus.Desc, v uint64, labels ...string), gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	if l := n.cfg.Life; l != nil {
		count(descCrashes, l.Crashes)
	}
	if f := n.peer.supervisor; f != nil {
		gauge(descSupervisor, flag(f.Connected()))
	}
}

// supervisorProto is what the control API says of the supervisors; nil without one.
func (n *Node) supervisorProto() *targetv1.Supervisor {
	l := n.cfg.Life
	if l == nil {
		return nil
	}
	out := &targetv1.Supervisor{Crashes: l.Crashes, LastCrash: l.Last}
	if l.Last != "" {
		out.LastCrashTime = timestamppb.New(time.Unix(l.LastAt, 0))
	}
	if f := n.peer.supervisor; f != nil {
		out.PeerConfigured, out.PeerConnected = true, f.Connected()
	}
	return out
}
