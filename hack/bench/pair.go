package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/freeport"
)

// pair is two gemel-target processes on loopback with a file arbiter.
type pair struct {
	bin   string
	log   *slog.Logger // the initiator's
	nodes [2]*node
}

type node struct {
	name   string
	args   []string
	portal string
	proc   *process
	conn   *grpc.ClientConn
	api    targetv1.TargetServiceClient
}

// pairHostIQN is the host of mirrored LUNs: the bench LUN stands in the way of LUN 0 of hostIQN.
const pairHostIQN = hostIQN + "-pair"

// startPair builds gemel-target and starts both nodes. Node a also exports the unmirrored bench LUN of size bytes.
func startPair(ctx context.Context, dir string, size int64, log *slog.Logger) (*pair, error) {
	p := &pair{log: log, bin: filepath.Join(dir, "gemel-target")}
	out, err := exec.CommandContext(ctx, "go", "build", "-o", p.bin, "./cmd/gemel-target").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go build ./cmd/gemel-target: %w\n%s", err, out)
	}
	var addr [5]string // portals of a and b, control of a and b, link
	for i := range addr {
		if addr[i], err = freeport.Addr("127.0.0.1"); err != nil {
			return nil, err
		}
	}
	for i, name := range []string{"a", "b"} {
		n := &node{name: name, portal: addr[i]}
		n.args = []string{"--cluster", "bench", "--pair", "p0", "--node", name, "--state-dir", filepath.Join(dir, "node-"+name),
			"--arbiter", "file:" + filepath.Join(dir, "record"), "--iscsi-listen", addr[i], "--control-listen", addr[2+i],
			"--portal", "a=" + addr[0], "--portal", "b=" + addr[1], "--log-level", "warn"}
		if i == 0 {
			n.args = append(n.args, "--link-listen", addr[4], "--bench-lun", hostIQN+"="+strconv.FormatInt(size, 10))
		} else {
			n.args = append(n.args, "--link-peer", addr[4])
		}
		n.conn, err = grpc.NewClient(addr[2+i], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		n.api = targetv1.NewTargetServiceClient(n.conn)
		p.nodes[i] = n
	}
	for _, n := range p.nodes {
		if err := n.start(p.bin); err != nil {
			p.close()
			return nil, err
		}
	}
	if err := p.inSync(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (n *node) start(bin string) (err error) {
	n.proc, err = startProcess(bin, n.args...)
	return err
}

func (p *pair) close() {
	for _, n := range p.nodes {
		if n != nil && n.proc != nil {
			n.proc.stop()
			n.conn.Close()
		}
	}
}

// inSync waits until both nodes say so.
func (p *pair) inSync(ctx context.Context) error {
	for _, n := range p.nodes {
		err := n.proc.await(ctx, "node "+n.name+" in sync", func() error {
			c, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			s, err := n.api.GetStatus(c, &targetv1.GetStatusRequest{})
			if err != nil {
				return err
			}
			if s.Phase != targetv1.Phase_PHASE_IN_SYNC {
				return fmt.Errorf("%v: %s", s.Phase, s.Reason)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%w\n%s", err, n.proc.log.String())
		}
	}
	return nil
}

// unmirrored is node a's bench LUN: one replica, write-back, as tgt runs.
func (p *pair) unmirrored(ctx context.Context) (*served, error) {
	s, err := p.nodes[0].api.GetStatus(ctx, &targetv1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	a := p.nodes[0]
	u := &served{name: "gemel", portal: a.portal, iqn: s.TargetIqn, lun: 0, pids: []int{a.proc.cmd.Process.Pid},
		flags: "gemel-target, unmirrored bench LUN, write-back", stop: func() {}}
	return u, u.open(ctx)
}

// mirrored makes a LUN of the pair, owned by node a, and opens it over both portals.
func (p *pair) mirrored(ctx context.Context, uuid, name string, size int64) (*served, error) {
	a := p.nodes[0]
	if _, err := a.api.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: uuid, Name: name, SizeBytes: uint64(size), PreferredNode: "a"}); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	m, err := a.api.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: uuid, HostIqn: pairHostIQN})
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	cfg := initiator.Config{InitiatorName: pairHostIQN, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid, Log: p.log}
	for _, portal := range m.Portals {
		cfg.Portals = append(cfg.Portals, portal.Address)
	}
	d, err := initiator.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &served{name: "mirrored", dev: d, pids: []int{a.proc.cmd.Process.Pid, p.nodes[1].proc.cmd.Process.Pid}, stop: func() {}}, nil
}

// transfer moves a LUN in a planned way.
func (p *pair) transfer(ctx context.Context, uuid, to string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := p.nodes[0].api.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{uuid}, ToNode: to})
	return err
}

// failBack brings a LUN home to node a once the pair is whole again and admits it.
func (p *pair) failBack(ctx context.Context, uuid string) error {
	return p.nodes[0].proc.await(ctx, "fail-back", func() error {
		if err := p.inSync(ctx); err != nil {
			return err
		}
		return p.transfer(ctx, uuid, "a")
	})
}

// events of the pause measurements: the operations that must complete after each before the next.
const opsPerEvent = 1000

// pauses applies events under load and returns for each the longest time from submission to acknowledgement of any operation
// that overlaps it. between makes the pair ready for the next one.
func pauses(ctx context.Context, s *served, count int, event func(int) error, between func(int) error) ([]float64, error) {
	r := newRunner(s.dev, workload{op: initiator.OpWrite, block: 4096, depth: 8, random: true})
	r.start()
	var worst []float64
	var err error
	for i := range count {
		if err = r.more(ctx, opsPerEvent); err != nil {
			break
		}
		r.mark()
		if err = event(i); err == nil {
			err = r.more(ctx, opsPerEvent)
		}
		if err != nil {
			break
		}
		worst = append(worst, float64(r.worst())/float64(time.Millisecond))
		fmt.Printf("event %d: longest operation %v\n", i+1, r.worst().Round(10*time.Microsecond))
		if err = between(i); err != nil {
			break
		}
	}
	r.stop.Store(true)
	<-r.ended
	if p := r.failed.Load(); p != nil {
		err = errors.Join(*p, err)
	}
	return worst, err
}

// more waits for n further operations.
func (r *runner) more(ctx context.Context, n int64) error {
	want := r.done.Load() + n
	deadline := time.Now().Add(time.Minute)
	for r.done.Load() < want {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d operations did not complete within a minute", n)
		}
		if err := pause(ctx, r, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

const (
	mirrorUUID = "6d697272-6f72-4000-8000-000000000001"
	pauseUUID  = "70617573-6500-4000-8000-000000000001"
	pauseSize  = 128 << 20
)

// measurePauses gives transfer_pause_ms and crash_pause_ms.
func measurePauses(ctx context.Context, p *pair, events int) ([]result, error) {
	s, err := p.mirrored(ctx, pauseUUID, "pause", pauseSize)
	if err != nil {
		return nil, err
	}
	defer s.close()
	none := func(int) error { return nil }
	move, err := pauses(ctx, s, events, func(i int) error {
		return p.transfer(ctx, pauseUUID, []string{"b", "a"}[i%2])
	}, none)
	if err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	list := []result{worstOf("transfer_pause_ms", move)}
	if err := p.transfer(ctx, pauseUUID, "a"); err != nil {
		return list, err
	}
	a := p.nodes[0]
	crash, err := pauses(ctx, s, events, func(int) error {
		a.proc.kill()
		return nil
	}, func(int) error {
		if err := a.start(p.bin); err != nil {
			return err
		}
		return p.failBack(ctx, pauseUUID)
	})
	if err != nil {
		return list, fmt.Errorf("crash: %w", err)
	}
	return append(list, worstOf("crash_pause_ms", crash)), nil
}
