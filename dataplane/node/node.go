package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/link"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/supervise"
	"github.com/gemel-storage/gemel/internal/certfiles"
	"github.com/gemel-storage/gemel/internal/longlock"
)

// Node is one node of a pair.
type Node struct {
	cfg   Config
	self  pair.Node
	log   *slog.Logger
	tls   *certfiles.Files // nil: loopback only
	store *store.Store
	arb   arbiter.Arbiter

	mu sync.Mutex // the machine, and the order of what it sends
	m  *pair.Machine

	md   metadata
	io   dataPath
	peer peer
	own  ownState
	seen reports
	run  lifecycle

	chair  chair
	meter  workMeter
	copies copies
	groups groups

	quarantines quarantines
	mover       mover
	tiers       *tiers

	scsi  *scsi.Server
	iscsi *iscsi.Server
	waits waits
	batch batcher
}

// metadata is the pair's replicated metadata as it is applied here, and what is made of it.
type metadata struct {
	mu       longlock.Mutex // held while files are made and closed
	state    *meta.State
	work     *entryWork        // the entry of the log under way
	misfits  map[string]string // objects whose files are not what the state says, and in what (misfit.go)
	occupied map[string]bool   // objects that were not made since something else has their name

	occupying sync.Mutex   // of occupied, beside mu: files of a batch are made at the same time
	sizes     sizes        // of what it holds
	bytes     atomic.Int64 // the sum of sizes, for callers that do not hold mu
	tables    atomic.Pointer[tables]
}

// dataPath is what commands need to reach the backing volumes.
type dataPath struct {
	ops     opPool
	readers map[*store.BackingVolume]*readers
	buffers buffers
	bench   atomic.Pointer[benchUnit]
}

// peer is the connection to the other node.
type peer struct {
	link     *link.Link
	out      scsi.Outbox   // of the goroutine that reads the link
	linkN    atomic.Uint64 // the number of the present link
	applies  tally         // store work for the peer of the present link
	capacity atomic.Pointer[capacity]

	supervisor *supervise.Follower // nil: none is configured
}

// Send implements scsi.Sender.
func (p *peer) Send() { p.link.Kick() }

// ownState is what this node remembers of itself beside the metadata.
type ownState struct {
	saved     saved
	process   uint64                 // the nonce of this process's incarnation
	began     int64                  // when this process did
	crashed   bool                   // the process before it crashed
	changing  longlock.Mutex         // of the node's own state
	markFloor uint64                 // the highest mark that a backing volume had at the start
	doubt     atomic.Bool            // a backing volume is not as it should be: their marks stand still
	refused   atomic.Pointer[string] // why the install of a resync was refused
}

// reports is what a person and a monitoring system see of this node.
type reports struct {
	events  control.Events
	metrics counters
	damage  damageTally
	scrubs  scrubs
	warm    warmTally
	probed  atomic.Pointer[probed] // the last look at the disks
}

// lifecycle is one run of the node, from Run to its end.
type lifecycle struct {
	ctx      context.Context
	cancel   context.CancelFunc
	tasks    tasks
	lastTick atomic.Int64
	stopping atomic.Bool
	over     chan string            // why this run is over, once
	step     atomic.Pointer[string] // of the end, once it has begun (stop.go)
}

// New opens the store and prepares a node; Run starts it. The configuration must be valid.
func New(cfg Config) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := cfg.Outside.defaults(); err != nil {
		return nil, err
	}
	start := cfg.Outside.Clock()
	self, _ := pair.ParseNode(cfg.Node)
	var certs *certfiles.Files
	if cfg.TLSCert != "" {
		if certs, err = loadTLS(&cfg); err != nil {
			return nil, err
		}
	}
	arb := cfg.Outside.Arbiter
	if arb == nil {
		if arb, err = openArbiter(&cfg); err != nil {
			return nil, fmt.Errorf("%w: arbiter: %w", ErrConfig, err)
		}
	}
	volumes, members, err := cfg.volumes()
	if err != nil {
		return nil, err
	}
	placeTiers, err := cfg.tiers()
	if err != nil {
		return nil, err
	}
	st, err := store.Open(cfg.StateDir, store.Identity{Cluster: cfg.Cluster, Pair: cfg.Pair, Node: cfg.Node},
		store.Options{Log: cfg.Logger, Faults: cfg.Faults, Cached: cfg.Cached, Volumes: volumes, Members: members, Lost: cfg.LostVolumes, Tiers: placeTiers, SharedFilesystem: cfg.SharedFilesystem, Sums: cfg.sumsOptions()})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = st.Close()
		}
	}()
	n := &Node{cfg: cfg, self: self, log: cfg.Logger, tls: certs, store: st, arb: arb, quarantines: newQuarantines(), mover: newMover(), tiers: newTiers(&cfg, st)}
	n.io.readers, n.md.occupied = map[*store.BackingVolume]*readers{}, map[string]bool{}
	n.md.tables.Store(&tables{})
	if cfg.Life != nil {
		n.blamed(cfg.Life.Blames, true) // before a LUN can be reached
	}
	n.peer.supervisor = n.peerSupervisor()
	lock, err := st.LockID()
	if err != nil {
		return nil, err
	}
	own, err := n.loadState()
	if err != nil {
		return nil, err
	}
	if n.md.state, err = n.loadMetadata(); err != nil {
		return nil, err
	}
	untrusted, err := st.Untrusted()
	if err != nil {
		return nil, err
	}
	doubt, err := n.checkVolumes(&own)
	if err != nil {
		return nil, err
	}
	files, err := n.files()
	if err != nil {
		return nil, err
	}
	if err := n.checkFiles(files); err != nil {
		return nil, err
	}
	untrusted = cmp.Or(untrusted, doubt)
	inc := pair.Incarnation{Boot: cfg.Outside.Boot, Nonce: rand.Uint64() | 1}
	if cfg.Life != nil {
		inc.Nonce = cfg.Life.Nonce
	}
	if err = n.saveIncarnation(inc); err != nil {
		return nil, err
	}
	n.own.process, n.own.began, n.own.crashed = inc.Nonce, start, cfg.Life != nil && cfg.Life.Last != ""
	n.m = pair.New(pair.Config{Alloc: func(size int64) []byte { return n.io.buffers.get(int(size)) }, Msg: link.NewMsg, Op: n.io.ops.get, Self: self, Cluster: cfg.Cluster, Pair: cfg.Pair, Store: st.ID(), Incarnation: inc, Lock: lock, ArbiterMax: arbiterTimeout,
		DurableEpoch: own.Epoch, Known: own.Record, Acted: own.Acted, State: own.Pair, LogIndex: n.md.state.Index,
		Region: store.RegionSize, Sums: !cfg.NoChecksums, CheckpointIdle: time.Duration(cfg.CheckpointIdle),
		Empty: n.md.state.Index == 0, Start: start, Lease: time.Duration(cfg.Lease), Untrusted: untrusted, Misfits: n.misfitText(),
		Preferred: cfg.Preferred == "" && self == pair.A || cfg.Preferred == cfg.Node, Check: n.check})
	n.scsi = scsi.NewServer(n, scsi.Config{TargetName: cfg.TargetIQN(), Port: uint16(self) + 1, Log: cfg.Logger,
		Blame: func(u *scsi.Unit) { n.cfg.Life.Blame(u.UUID()) }})
	n.iscsi, err = iscsi.New(iscsi.Config{TargetName: cfg.TargetIQN(), Portals: cfg.portals(), Tag: uint16(self) + 1,
		Logger: cfg.Logger, Clock: n.boottime, HeaderDigest: cfg.HeaderDigest, DataDigest: cfg.DataDigest,
		Limits: iscsi.Limits{Memory: int(cfg.ISCSIMemory)}}, n.scsi, n)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			ended, end := context.WithCancel(context.Background())
			end() // there is no session to wait for
			_ = n.iscsi.Shutdown(ended)
		}
	}()
	n.run.ctx, n.run.cancel = context.WithCancel(context.Background())
	if err = n.reconcileFiles(files, untrusted == "" && n.misfitText() == ""); err != nil {
		return nil, err
	}
	n.loadScrubs(time.Now())
	return n, nil
}

func (c *Config) portals() (out []iscsi.Portal) {
	for _, p := range c.Portals {
		node, addr, _ := strings.Cut(p, "=")
		t, _ := pair.ParseNode(node)
		out = append(out, iscsi.Portal{Address: addr, Tag: uint16(t) + 1})
	}
	return out
}

// serveUntil is Run, as long as nothing hangs.
func (n *Node) serveUntil(ctx context.Context) error {
	defer func() { _ = n.store.Close() }()
	defer func() {
		n.ends(stepFiles)
		n.store.Ending()
		n.closeFiles()
	}()
	defer n.run.tasks.Wait()
	defer n.run.cancel()
	defer n.ends(stepWork)
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	listen := func(field, addr string) (net.Listener, error) {
		l, err := n.cfg.Outside.Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrConfig, field, err)
		}
		listeners = append(listeners, l)
		return l, nil
	}
	lcfg := link.Config{Cluster: n.cfg.Cluster, Pair: n.cfg.Pair, Self: n.self, Dial: n.cfg.LinkPeer, DialFunc: n.cfg.Outside.Dial,
		Logger: n.log, Alloc: n.io.buffers.get, Sent: n.messageSent, Features: n.cfg.features()}
	if n.tls != nil {
		lcfg.TLS = n.peerTLS()
	}
	var err error
	if n.self == pair.A {
		if lcfg.Listen, err = listen("link-listen", n.cfg.LinkListen); err != nil {
			return err
		}
	}
	control, err := listen("control-listen", n.cfg.ControlListen)
	if err != nil {
		return err
	}
	var metrics net.Listener
	if n.cfg.MetricsListen != "" {
		if metrics, err = listen("metrics-listen", n.cfg.MetricsListen); err != nil {
			return err
		}
	}
	n.run.lastTick.Store(n.boottime()) // live from the start, before the loop's first turn
	n.peer.link = link.New(lcfg, (*linkHandler)(n))
	stopControl := n.serveControl(control)
	defer stopControl()
	if metrics != nil {
		stop := n.serveMetrics(metrics)
		defer stop()
	}
	if n.cfg.BenchLUN != "" {
		if err := n.openBench(); err != nil {
			return err
		}
	}
	n.do(func(m *pair.Machine, now int64) {
		n.wall(m, now) // a step is one against what was seen before anything was confirmed
		m.Start(now)
	})
	n.run.tasks.Go(taskTick, n.tickLoop)
	if f := n.peer.supervisor; f != nil {
		n.run.tasks.Go(taskTick, func() { f.Run(n.run.ctx) })
	}
	n.tellOfCrash()
	linkCtx, stopLink := context.WithCancel(n.run.ctx)
	defer stopLink()
	n.run.tasks.Go(taskTick, func() { _ = n.peer.link.Run(linkCtx) })
	n.run.tasks.Go(taskWatch, n.watchStore)
	n.run.tasks.Go(taskProbe, n.probeLoop)
	n.run.tasks.Go(taskWatch, n.chairLoop)
	n.run.tasks.Go(taskCopy, n.sealCopies)
	n.run.tasks.Go(taskMove, n.arrangeLoop)
	n.run.tasks.Go(taskTiers, n.tierLoop)
	n.run.tasks.Go(taskWatch, n.recordQuarantines)
	if !n.cfg.NoChecksums {
		n.run.tasks.Go(taskChecksums, n.adoptLoop)
	}
	if r, ok := n.arb.(runner); ok {
		n.run.tasks.Go(taskTick, func() { r.Run(n.run.ctx) })
	}
	if every := time.Duration(n.cfg.ScrubInterval); every > 0 {
		n.run.tasks.Go(taskScrub, func() { n.scrubLoop(every) })
	}
	for _, a := range n.cfg.ISCSIListen {
		l, err := listen("iscsi-listen", a)
		if err != nil {
			return err
		}
		n.run.tasks.Go(taskServe, func() {
			if err := n.iscsi.Serve(n.run.ctx, l); err != nil && n.run.ctx.Err() == nil && !n.run.stopping.Load() {
				n.log.Error("an iSCSI portal stopped serving", "addr", a, "err", err)
			}
		})
	}
	n.log.Info("node started", "cluster", n.cfg.Cluster, "pair", n.cfg.Pair, "node", n.cfg.Node, "store", n.store.ID(),
		"iqn", n.cfg.TargetIQN(), "volumes", len(n.store.Volumes()))
	if why := n.watchOver(ctx); why != "" {
		return n.leave(why)
	}
	n.handOver()
	return nil
}

// watchStore steps down when the store fails outside a command (R12).
func (n *Node) watchStore() {
	select {
	case <-n.run.ctx.Done():
	case <-n.store.FailedC():
		n.do(func(m *pair.Machine, now int64) { m.StoreFailed(now, n.store.Failed().Error()) })
	}
}

// View is the machine's standing.
func (n *Node) View() pair.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.View(n.boottime())
}

// hotRegions is what a resync would compare.
func (n *Node) hotRegions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.HotRegions()
}

// waitView waits until the standing satisfies ok.
func (n *Node) waitView(ctx context.Context, ok func(pair.View) bool) error {
	for {
		c := n.waits.standing.next() // before the look
		if ok(n.View()) {
			return nil
		}
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
