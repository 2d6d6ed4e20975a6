package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// PairOptions describe a pair. The zero value, with a name, is the default case: mutual TLS, XFS.
type PairOptions struct {
	Name   string
	Binary string   // gemel-target; default the rig's
	Plain  bool     // no TLS on the link
	Args   []string // more flags of both nodes
	FS     Kind     // default XFS
	Size   int64    // bytes of each node's filesystem
	// Dirs are filesystems that exist already, one for each node; otherwise they are made.
	Dirs       [2]string
	Unmirrored int64 // bytes of an unmirrored LUN with write-back cache that node a exports as well; 0: none
	// Supervisors are started for both nodes, as harness.Options has them.
	Supervisors bool
	Kill        bool // at the end nodes are killed and not stopped in an orderly way
	// Volumes are further backing volumes of each node, by name: the filesystems of node a and b.
	Volumes map[string][2]string
	Wrap    [2][]string // commands that the nodes are started by, as harness.Options has them
}

// Pair is two nodes.
type Pair struct {
	*harness.Pair
	rig  *Rig
	opts PairOptions
}

// StartPair makes the filesystems and starts both nodes.
func (r *Rig) StartPair(ctx context.Context, o PairOptions) (p *Pair, err error) {
	if o.FS == "" {
		o.FS = XFS
	}
	h := harness.Options{Dir: r.Lab.Path("pair-" + o.Name), Binary: cmp.Or(o.Binary, r.Bin), Args: append([]string{"--log-level", "warn"}, o.Args...),
		Supervised: true, Supervisors: o.Supervisors, Wrap: o.Wrap} // a node that has left is started again, as by what runs it elsewhere
	for i, n := range harness.Names {
		if o.Dirs[i] == "" {
			if o.Dirs[i], err = r.Filesystem(ctx, o.Name+"-"+n, o.FS, o.Size); err != nil {
				return nil, err
			}
		}
		h.State[i] = filepath.Join(o.Dirs[i], "state")
	}
	var addr [9]string
	for i := range addr {
		if addr[i], err = freeport.Addr("127.0.0.1"); err != nil {
			return nil, err
		}
	}
	h.Net = &harness.Network{ISCSI: [2]string{addr[0], addr[1]}, Control: [2]string{addr[2], addr[3]},
		Metrics: [2]string{addr[4], addr[5]}, Supervisor: [2]string{addr[7], addr[8]}, Link: addr[6], Credentials: insecure.NewCredentials()}
	if !o.Plain {
		if h.PerNode, h.Net.Credentials, err = harness.PKI(r.Lab.Path("pki-" + o.Name)); err != nil {
			return nil, err
		}
	}
	for name, dirs := range o.Volumes {
		for i, dir := range dirs {
			h.PerNode[i] = append(h.PerNode[i], "--backing-volume", name+"="+filepath.Join(dir, "volume"))
		}
	}
	if o.Unmirrored > 0 {
		h.PerNode[0] = append(h.PerNode[0], "--bench-lun", fmt.Sprintf("%s=%d", unmirroredHost, o.Unmirrored))
	}
	p = &Pair{rig: r, opts: o}
	if p.Pair, err = harness.New(h); err != nil {
		return nil, err
	}
	start, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := p.Start(start); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close ends both nodes.
func (p *Pair) Close() error {
	if p.opts.Kill {
		return errors.Join(p.Kill(0), p.Kill(1))
	}
	return p.Pair.Close()
}

// InSync says whether both nodes are in sync, and what they are instead.
func (p *Pair) InSync(ctx context.Context) error {
	for i, n := range harness.Names {
		s, err := p.Status(ctx, i)
		if err != nil {
			return fmt.Errorf("node %s: %w", n, err)
		}
		if s.Phase != targetv1.Phase_PHASE_IN_SYNC {
			return fmt.Errorf("node %s: %v %s", n, s.Phase, s.Reason)
		}
	}
	return nil
}

// Describe says what the pair is.
func (p *Pair) Describe() string {
	link := "mutual TLS"
	if p.opts.Plain {
		link = "plain link"
	}
	return strings.Join(append([]string{fmt.Sprintf("gemel-target pair, mirrored, %s, %s", link, p.opts.FS)}, p.opts.Args...), " ")
}

// Procs are the processes of both nodes.
func (p *Pair) Procs() []load.Process {
	return []load.Process{{Name: "a", PID: p.Serving(0)}, {Name: "b", PID: p.Serving(1)}}
}

const unmirroredHost = HostIQN + "unmirrored"

// Unmirrored opens the LUN of PairOptions.Unmirrored: one replica, write-back, as a plain target
// has it.
func (p *Pair) Unmirrored(ctx context.Context) (*Served, error) {
	d, err := initiator.Open(ctx, initiator.Config{InitiatorName: unmirroredHost, Target: p.IQN(), Portals: p.Portals()[:1], Log: p.rig.Log})
	if err != nil {
		return nil, err
	}
	return &Served{Device: d, Name: "unmirrored", Flags: "gemel-target, one replica, write-back, " + string(p.opts.FS), Procs: p.Procs()[:1]}, nil
}

// LUN is one of the pair, owned by node a when it is made.
type LUN struct {
	UUID string
	pair *Pair
}

// controlLimit bounds a call of the control API: a snapshot of an aged image may take minutes.
const controlLimit = 15 * time.Minute

// CreateLUN makes a LUN that node a owns.
func (p *Pair) CreateLUN(ctx context.Context, name string, size int64) (*LUN, error) {
	return p.CreateLUNAt(ctx, name, size, "a", "")
}

// CreateLUNAt makes a LUN that a node owns, on a backing volume; empty: the first one.
func (p *Pair) CreateLUNAt(ctx context.Context, name string, size int64, owner, volume string) (*LUN, error) {
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	l := &LUN{UUID: uuid.NewString(), pair: p}
	_, err := p.Client(0).CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: l.UUID, Name: name, SizeBytes: uint64(size), PreferredNode: owner, Volume: volume})
	if err != nil {
		return nil, fmt.Errorf("create LUN %s: %w", name, err)
	}
	return l, nil
}

// Delete removes the LUN from both nodes.
func (l *LUN) Delete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	_, err := l.pair.Client(0).UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: l.UUID})
	if err == nil {
		_, err = l.pair.Client(0).DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: l.UUID})
	}
	return err
}

// Transfer moves the LUN in a planned way; to a pair that is not whole yet it is tried again.
func (l *LUN) Transfer(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		if _, err = l.pair.Client(0).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{l.UUID}, ToNode: to}); err == nil {
			return nil
		}
		if werr := l.pair.WaitInSync(ctx); werr != nil {
			return errors.Join(err, werr)
		}
	}
	return err
}

// Snapshot takes one and returns its UUID when it is complete.
func (l *LUN) Snapshot(ctx context.Context) (string, error) {
	id := uuid.NewString()
	for {
		limited, cancel := context.WithTimeout(ctx, controlLimit)
		_, err := l.pair.Client(0).CreateSnapshot(limited, &targetv1.CreateSnapshotRequest{Uuid: id, Name: "snapshot-" + id, SourceLunUuid: l.UUID})
		cancel()
		if status.Code(err) != codes.Aborted { // else it is still being copied
			return id, err
		}
	}
}

// DeleteSnapshot removes one.
func (l *LUN) DeleteSnapshot(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	_, err := l.pair.Client(0).DeleteSnapshot(ctx, &targetv1.DeleteSnapshotRequest{Uuid: id})
	return err
}

// Via says through which portals a host reaches a LUN.
type Via int

// Portals: both as multipath does, only that of node a (the owner), or only that of node b.
const (
	Both Via = iota
	OnlyA
	OnlyB
)

// deviceDeadline is how long a request may wait for a path that serves: longer than any pause that
// is measured.
const deviceDeadline = 15 * time.Minute

// Open maps the LUN to a host and opens it; each call is a session of its own to each portal.
func (l *LUN) Open(ctx context.Context, host string, via Via) (*initiator.Device, error) {
	return l.OpenSessions(ctx, host, via, 1)
}

// OpenSessions is Open with several sessions to each portal.
func (l *LUN) OpenSessions(ctx context.Context, host string, via Via, sessions int) (*initiator.Device, error) {
	m, err := l.pair.Client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: l.UUID, HostIqn: HostIQN + host})
	if err != nil {
		return nil, fmt.Errorf("map LUN to %s: %w", host, err)
	}
	portals := slices.Clone(l.pair.Portals())
	switch via {
	case OnlyA:
		portals = portals[:1]
	case OnlyB:
		portals = portals[1:]
	}
	return initiator.Open(ctx, initiator.Config{InitiatorName: HostIQN + host, Target: m.TargetIqn, Portals: portals, LUN: uint16(m.Lun),
		WWID: m.Wwid, Sessions: sessions, Deadline: deviceDeadline, Timers: initiator.Timers{Command: -1}, Log: l.pair.rig.Log})
}

// URL maps the LUN to a host and names it as libiscsi's tools do, through its owner's portal.
func (l *LUN) URL(ctx context.Context, host string) (string, error) {
	m, err := l.pair.Client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: l.UUID, HostIqn: HostIQN + host})
	if err != nil {
		return "", fmt.Errorf("map LUN to %s: %w", host, err)
	}
	return fmt.Sprintf("iscsi://%s/%s/%d", l.pair.Portals()[0], m.TargetIqn, m.Lun), nil
}

// Serve opens the LUN as a system of a comparison.
func (l *LUN) Serve(ctx context.Context, name string, via Via) (*Served, error) {
	d, err := l.Open(ctx, strings.ReplaceAll(name, "_", "-"), via)
	if err != nil {
		return nil, err
	}
	return &Served{Device: d, Name: name, Flags: l.pair.Describe(), Procs: l.pair.Procs(), Whole: l.pair.InSync, URL: l.URL, File: l.Disk}, nil
}
