package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
)

// nodes is a pair: gemel-target on s1 (a, which owns the LUN) and s2 (b).
type nodes struct {
	l       *lab
	name    string // of the pair
	port    int    // of the portals; the next two are control and link
	creds   credentials.TransportCredentials
	perNode [2][]string
	link    [2]string // where a listens, and what b connects to
	clients [2]targetv1.TargetServiceClient
	pids    [2]int
}

// leaseTime is long: in an emulator on a busy machine a node may not run for a while, and a pair
// that falls apart measures nothing.
const leaseTime = "10s"

func (n *nodes) start(ctx context.Context, program string) (err error) {
	n.l.record.found("bench", n.name)
	for i, g := range n.l.guests {
		dir := "/srv/bench/" + n.name
		if err := g.Put(ctx, dir+".kubeconfig", 0o600, []byte(n.l.record.kubeconfig())); err != nil {
			return err
		}
		control := fmt.Sprintf("127.0.0.1:%d", n.port+1)
		argv := append([]string{program, "--cluster", harness.Cluster, "--pair", n.name, "--node", harness.Names[i], "--state-dir", dir, "--lease", leaseTime,
			"--arbiter", "lease:bench/" + n.name, "--kubeconfig", dir + ".kubeconfig", "--iscsi-listen", fmt.Sprintf("%s:%d", hostIP[i], n.port),
			"--portal", fmt.Sprintf("a=%s:%d", hostIP[0], n.port), "--portal", fmt.Sprintf("b=%s:%d", hostIP[1], n.port),
			"--control-listen", control, "--scrub-interval", "0s", "--log-level", "warn", []string{"--link-listen", "--link-peer"}[i], n.link[i]}, n.perNode[i]...)
		if n.pids[i], err = g.Start(ctx, guest.Command{Argv: argv, Log: dir + ".log"}); err != nil {
			return err
		}
		conn, err := grpc.NewClient("passthrough:"+control, grpc.WithTransportCredentials(n.creds),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return g.Dial(ctx, "tcp", addr) }),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
		if err != nil {
			return err
		}
		n.l.conns, n.clients[i] = append(n.l.conns, conn), targetv1.NewTargetServiceClient(conn)
	}
	return n.inSync(ctx)
}

// inSync waits until both nodes say so; when they do not, what they wrote is in the error.
func (n *nodes) inSync(ctx context.Context) error {
	for i, g := range n.l.guests {
		ended := false
		err := harness.Wait(ctx, "node "+harness.Names[i]+" of "+n.name+" in sync", func() (bool, string) {
			c, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			s, err := n.clients[i].GetStatus(c, &targetv1.GetStatusRequest{})
			if p, e := g.Look(c, n.pids[i]); e == nil && !p.Running {
				ended = true
			}
			if err != nil {
				return ended, err.Error()
			}
			return s.Phase == targetv1.Phase_PHASE_IN_SYNC, s.Phase.String() + ": " + s.Reason
		})
		if ended {
			err = fmt.Errorf("node %s of %s has ended", harness.Names[i], n.name)
		}
		if err != nil {
			text, _ := g.Get(context.WithoutCancel(ctx), "/srv/bench/"+n.name+".log")
			return fmt.Errorf("%w; its log: %s", err, text[max(0, len(text)-2000):])
		}
	}
	return nil
}

// lun makes a mirrored LUN and opens it over both portals.
func (n *nodes) lun(ctx context.Context, name, what string, log *slog.Logger) (*system, error) {
	id := uuid.NewString()
	if _, err := n.clients[0].CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: name, SizeBytes: size, PreferredNode: "a"}); err != nil {
		return nil, err
	}
	m, err := n.clients[0].MapHost(ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: hostIQN})
	if err != nil {
		return nil, err
	}
	cfg := initiator.Config{Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid, Log: log}
	for _, p := range m.Portals {
		cfg.Portals = append(cfg.Portals, p.Address)
	}
	return open(ctx, name, what, cfg)
}

// gemelPlain is a pair whose link is not encrypted, as DRBD's is not. Without certificates
// gemel-target takes a link on loopback only, so the guests' kernels translate addresses: what s2
// sends to port link of itself arrives at s1's loopback. Its node a serves the unmirrored LUN as
// well.
func (l *lab) gemelPlain(ctx context.Context, log *slog.Logger) ([]*system, error) {
	program, err := l.program(ctx, "./cmd/gemel-target")
	if err != nil {
		return nil, err
	}
	n := &nodes{l: l, name: "plain", port: 3280, creds: insecure.NewCredentials()}
	for i, g := range l.guests {
		n.link[i] = fmt.Sprintf("127.0.0.1:%d", n.port+2)
		// Behind prerouting the packet is for loopback; behind output it leaves, with this guest's
		// own address.
		hook, from, to := "prerouting priority dstnat", mirrorIP[0], "127.0.0.1"
		if i == 1 {
			hook, from, to = "output priority -100", "127.0.0.1", mirrorIP[0]
		}
		rules := fmt.Sprintf("table ip bench {\nchain to {\ntype nat hook %s;\nip daddr %s tcp dport %d dnat to %s\n}\n"+
			"chain from {\ntype nat hook postrouting priority srcnat;\noifname eth2 ip saddr 127.0.0.1 snat to %s\n}\n}\n", hook, from, n.port+2, to, mirrorIP[i])
		if err := modules(ctx, g, "nf_tables", "nft_chain_nat", "nft_nat"); err != nil {
			return nil, err
		}
		if err := g.Put(ctx, "/srv/bench/nat", 0o600, []byte(rules)); err != nil {
			return nil, err
		}
		if _, err := g.Shell(ctx, "sysctl -qw net.ipv4.conf.all.route_localnet=1 && nft -f /srv/bench/nat"); err != nil {
			return nil, err
		}
	}
	// The unmirrored LUN has its own host, because it would take the number of LUN 0 of the other
	// host.
	bench := hostIQN + "-unmirrored"
	n.perNode[0] = []string{"--bench-lun", fmt.Sprintf("%s=%d", bench, size)}
	if err := n.start(ctx, program); err != nil {
		return nil, err
	}
	s, err := n.lun(ctx, plainName, "gemel-target, mirrored, the link in the clear", log)
	if err != nil {
		return nil, err
	}
	st, err := n.clients[0].GetStatus(ctx, &targetv1.GetStatusRequest{})
	if err != nil {
		return []*system{s}, err
	}
	u, err := openAs(ctx, bench, unmirroredName, "gemel-target, --bench-lun: one replica, write cache", initiator.Config{Target: st.TargetIqn, Portals: []string{fmt.Sprintf("%s:%d", hostIP[0], n.port)}, Log: log})
	if err != nil {
		return []*system{s}, err
	}
	return []*system{s, u}, nil
}

// gemelMTLS is a pair as users have it: certificates on both sides of the link.
func (l *lab) gemelMTLS(ctx context.Context, log *slog.Logger) ([]*system, error) {
	n := &nodes{l: l, name: harness.PairName, port: 3290}
	n.link = [2]string{fmt.Sprintf("%s:%d", mirrorIP[0], n.port+2), fmt.Sprintf("%s:%d", mirrorIP[0], n.port+2)}
	dir := filepath.Join(l.dir, "pki")
	var err error
	if n.perNode, n.creds, err = harness.PKI(dir); err != nil {
		return nil, err
	}
	// The guests have them at the same place as this machine.
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, g := range l.guests {
		if _, err := g.Output(ctx, "mkdir", "-p", dir); err != nil {
			return nil, err
		}
		for _, f := range files {
			data, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err == nil {
				err = g.Put(ctx, filepath.Join(dir, f.Name()), 0o600, data)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if err := n.start(ctx, "/usr/local/sbin/gemel-target"); err != nil {
		return nil, err
	}
	s, err := n.lun(ctx, mtlsName, "gemel-target, mirrored, mutual TLS on the link: as installed", log)
	if err != nil {
		return nil, err
	}
	return []*system{s}, nil
}
