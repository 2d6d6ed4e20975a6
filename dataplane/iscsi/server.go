// Package iscsi is the iSCSI target protocol engine: logins, discovery and the full-feature phase
// of sessions with one connection and ErrorRecoveryLevel 0 (RFC 7143). It moves commands between
// sockets and a device server; what a command means is not its business.
//
// One goroutine per connection reads and decodes in place. Responses gather in the connection's
// output queue and leave with one writev per batch; see output.go for who writes when.
package iscsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/clock"
	"github.com/gemel-storage/gemel/internal/halfopen"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// Portal is one advertised address of the target.
type Portal struct {
	Address string // host:port as initiators reach it, IPv6 in brackets; not necessarily the socket's own
	Tag     uint16 // target portal group tag
}

// Credentials are what a host's login is checked against. The zero value means no authentication.
type Credentials struct {
	User, Secret             string // the initiator proves these (CHAP)
	MutualUser, MutualSecret string // with these the target proves itself when asked; empty: it cannot
}

// Host is what the node knows of an initiator.
type Host struct {
	Credentials
	Known bool // the credentials are the host's: it may discover
	LUNs  bool // at least one LUN is mapped to it: it may log in
	// Sure: this node serves, so a host that it does not know, or that has no LUN here, has none. A
	// node that does not serve may have old metadata.
	Sure bool
}

// Hosts decides who may log in. It is asked at every login and must be safe for concurrent use.
type Hosts interface {
	// Admit tells what is known of an initiator, by its iSCSI name in lower case.
	Admit(initiator string) Host
}

// Device is the device server behind the sessions; *scsi.Server is one.
type Device interface {
	// OpenNexus begins an I_T nexus. It never fails and raises the unit attentions of a new nexus.
	OpenNexus(id scsi.NexusID) *scsi.Nexus
	// CloseNexus ends it: kills the commands that have not started and waits for those that have,
	// on the other node too, then calls done once, from any goroutine.
	CloseNexus(n *scsi.Nexus, done func())
	// Submit starts a command: true when it is complete on return, false when Done of the task will
	// be called.
	Submit(t *scsi.Task) bool
	// TaskManagement carries out a task management function and calls done once with the response
	// code (RFC 7143 §11.6.1), from any goroutine, maybe before it returns.
	TaskManagement(r scsi.TMF, done func(scsi.TMResponse))
}

// Config configures a Server. Zero values mean the default given with each field.
type Config struct {
	TargetName string   // iSCSI name, required
	Alias      string   // TargetAlias, optional
	Portals    []Portal // advertised by SendTargets: those of all nodes of the pair
	Tag        uint16   // this node's target portal group tag and relative target port identifier; required
	Limits     Limits
	Logger     *slog.Logger
	Clock      func() int64 // ns since some fixed point, counting suspend; default CLOCK_BOOTTIME

	LoginTimeout time.Duration // a whole login, default 15 s
	NopInterval  time.Duration // idle time before the target pings, default 10 s; negative: never
	NopTimeout   time.Duration // without any byte after a ping, then the connection is dropped; default 10 s
	WriteTimeout time.Duration // a slow reader's socket may stay full this long, default 20 s
	MaxAge       time.Duration // D of rule R11b: after a pause longer than this buffered commands are dropped; default DefaultMaxAge

	HeaderDigest DigestPolicy // default DigestAllow
	DataDigest   DigestPolicy
}

// Limits bound what initiators can make the server hold.
type Limits struct {
	Connections int // sessions, default 1024; a login beyond is refused
	Logins      int // connections that have not logged in yet, default 64; with more the oldest is closed

	InitiatorSessions int // sessions of one initiator name, default half of Connections
	AddressSessions   int // sessions from one address (IPv6: a /64), default half of Connections

	Window        int // commands in flight per session, default 128
	Transfer      int // bytes of write data gathered for one command, default 8 MiB
	SessionMemory int // bytes of write data, and again of read data, in flight per session at most, default 64 MiB
	Memory        int // bytes of them over all sessions; default a quarter of what Go may use (GOMEMLIMIT), 1 GiB if that has no limit
	FirstBurst    int // bytes of unsolicited data per command, default 256 KiB
	MaxBurst      int // bytes per R2T or Data-In sequence, default 1 MiB
	RecvSegment   int // MaxRecvDataSegmentLength we declare, 8 KiB to 256 KiB, default 256 KiB
}

// DefaultMaxAge is D. Initiators declare a silent loss no sooner than 2·D after the last sign of
// life.
const DefaultMaxAge = time.Second

func orDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) defaults() error {
	if !pdu.ValidName(c.TargetName) {
		return fmt.Errorf("iscsi: target name %q must be a lower-case iSCSI name", c.TargetName)
	}
	if c.Tag == 0 {
		return errors.New("iscsi: the portal group tag must not be 0")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = boottime
	}
	orDefault(&c.LoginTimeout, 15*time.Second)
	orDefault(&c.NopInterval, 10*time.Second)
	orDefault(&c.NopTimeout, 10*time.Second)
	orDefault(&c.WriteTimeout, 20*time.Second)
	orDefault(&c.MaxAge, DefaultMaxAge)
	l := &c.Limits
	orDefault(&l.Connections, 1024)
	orDefault(&l.Logins, 64)
	orDefault(&l.InitiatorSessions, max(l.Connections/2, 1))
	orDefault(&l.AddressSessions, max(l.Connections/2, 1))
	orDefault(&l.Window, 128)
	orDefault(&l.Transfer, 8<<20)
	orDefault(&l.SessionMemory, 64<<20)
	orDefault(&l.FirstBurst, 256<<10)
	orDefault(&l.MaxBurst, 1<<20)
	orDefault(&l.RecvSegment, 256<<10)
	for _, x := range []struct {
		name      string
		v, lo, hi int
	}{
		{"connections", l.Connections, 1, 1 << 20}, {"logins", l.Logins, 1, 1 << 20},
		{"initiator sessions", l.InitiatorSessions, 1, 1 << 20}, {"address sessions", l.AddressSessions, 1, 1 << 20}, {"window", l.Window, 1, 4096},
		{"transfer", l.Transfer, max(64<<10, l.FirstBurst), maxBuffer}, {"session memory", l.SessionMemory, l.Transfer, 1 << 40},
		{"memory", l.Memory, leastBudget(l), 1 << 50},
		{"first burst", l.FirstBurst, 512, 1 << 20}, {"max burst", l.MaxBurst, l.FirstBurst, 16<<20 - 1},
		{"receive segment", l.RecvSegment, 8 << 10, 256 << 10},
	} {
		if x.v < x.lo || x.v > x.hi {
			return fmt.Errorf("iscsi: limit %s is %d, must be %d to %d", x.name, x.v, x.lo, x.hi)
		}
	}
	return nil
}

// leastBudget is the least that may be set as the memory of all sessions: the longest command must
// fit the part that is asked for.
func leastBudget(l *Limits) int {
	if l.Memory == 0 {
		return 0
	}
	return 4 * classSize(l.Transfer)
}

// boottime is the default clock.
func boottime() int64 { return clock.Boottime() }

// Stats are the server's counters; read them at any time.
type Stats struct {
	Accepted               atomic.Int64 // connections
	Refused                atomic.Int64 // logins beyond a limit of sessions, connections while the server ends
	Evicted                atomic.Int64 // connections closed before they had logged in, for newer ones
	Logins, LoginsFailed   atomic.Int64
	Forbidden              atomic.Int64 // logins of hosts that are not known, or that no LUN is mapped to
	NotYet                 atomic.Int64 // logins of hosts that may have a LUN that this node has not heard of
	Commands               atomic.Int64 // SCSI commands accepted
	ReadBytes, WriteBytes  atomic.Int64 // SCSI data
	TaskManagement         atomic.Int64
	ProtocolErrors         atomic.Int64 // connections dropped for malformed or forbidden PDUs
	DigestErrors           atomic.Int64
	Dropped                atomic.Int64 // connections closed by the server for any reason but a logout
	Batches, WriteWouldBlk atomic.Int64 // writev calls, and those that found the socket full
	MemoryWaits            atomic.Int64 // commands that had to wait for memory
	TaskSetFull            atomic.Int64 // commands that came with data for which there was no memory
	Stalled                atomic.Int64 // sessions closed because they kept memory, unused, that others waited for
}

// Server is an iSCSI target on one node.
type Server struct {
	cfg    Config
	device Device
	hosts  Hosts
	log    *slog.Logger
	stats  Stats

	memory    budget
	refusedAt atomic.Int64 // clock when a command was last refused for memory

	portals  atomic.Pointer[[]Portal]
	lastTick atomic.Int64  // by the ticker; how a pause of the whole process is seen
	pauses   atomic.Uint32 // pauses seen so far

	wg       sync.WaitGroup // connections and the ticker
	stop     chan struct{}  // closed when Shutdown begins
	stopTick chan struct{}

	mu        sync.Mutex
	closing   bool
	listeners map[net.Listener]bool
	conns     map[*conn]bool
	sessions  map[sessionKey]*conn
	tsihs     map[uint16]bool
	nextTSIH  uint16

	half     halfopen.Set
	failures seldom
}

// sessionKey identifies a session at this target port: reinstatement is by it (RFC 7143 §6.3.5).
type sessionKey struct {
	initiator string
	isid      [6]byte
}

// New makes a server. It listens on nothing until Serve; Shutdown ends it in any case.
func New(cfg Config, device Device, hosts Hosts) (*Server, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, device: device, hosts: hosts, log: cfg.Logger,
		stop: make(chan struct{}), stopTick: make(chan struct{}),
		listeners: map[net.Listener]bool{}, conns: map[*conn]bool{}, sessions: map[sessionKey]*conn{},
		tsihs: map[uint16]bool{}, half: halfopen.Set{Max: cfg.Limits.Logins},
	}
	s.SetPortals(cfg.Portals)
	s.lastTick.Store(cfg.Clock())
	s.refusedAt.Store(cfg.Clock() - int64(cfg.WriteTimeout) - 1)
	s.memory.kick = make(chan struct{}, 1)
	s.setMemory()
	s.wg.Add(2)
	go s.tick()
	go s.grants()
	return s, nil
}

// Stats returns the counters.
func (s *Server) Stats() *Stats { return &s.stats }

// SetPortals replaces the advertised portals.
func (s *Server) SetPortals(p []Portal) {
	p = append([]Portal(nil), p...)
	s.portals.Store(&p)
}

// Serve accepts connections until ctx ends, Shutdown is called (both give nil) or the listener
// fails. It closes l. The listener must be one whose connections are kernel sockets.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = true
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		stop()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
		_ = l.Close()
	}()
	for backoff := time.Millisecond; ; {
		nc, err := l.Accept()
		if err != nil {
			select {
			case <-s.stop:
				return nil
			default:
			}
			if ctx.Err() != nil {
				return nil
			}
			// Out of descriptors is the usual cause and passes; a closed listener does not.
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
				s.log.Warn("cannot accept a connection; trying again", "err", err, "retry", backoff)
				select {
				case <-time.After(backoff):
				case <-ctx.Done():
				case <-s.stop:
				}
				backoff = min(2*backoff, time.Second)
				continue
			}
			return fmt.Errorf("iscsi: accept: %w", err)
		}
		backoff = time.Millisecond
		s.accept(nc)
	}
}

func (s *Server) accept(nc net.Conn) {
	s.stats.Accepted.Add(1)
	c, err := newConn(s, nc)
	if err != nil {
		s.log.Warn("cannot use a connection", "remote", nc.RemoteAddr(), "err", err)
		_ = nc.Close()
		return
	}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		s.stats.Refused.Add(1)
		_ = nc.Close()
		return
	}
	s.conns[c] = true
	s.wg.Add(1)
	s.mu.Unlock()
	half, evicted := s.half.Add(nc.RemoteAddr(), func() { c.kill("too many connections are not logged in, and this one is the oldest") })
	c.half = half // before its goroutine begins
	if evicted {
		s.stats.Evicted.Add(1)
	}
	go func() {
		defer s.wg.Done()
		c.run()
	}()
}

// Shutdown asks every initiator to log out (asynchronous event 1), waits for that until ctx ends,
// closes what is left and waits until every goroutine has ended and the device has finished every
// nexus. The error is ctx's when connections had to be closed.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	if first {
		close(s.stop)
	}
	for l := range s.listeners {
		_ = l.Close()
	}
	live := s.connsLocked(nil)
	s.mu.Unlock()
	wait := 10 * time.Second
	if d, ok := ctx.Deadline(); ok {
		wait = max(time.Until(d), time.Second)
	}
	for _, c := range live {
		if !c.requestLogout(wait) {
			c.kill("the target shut down during login")
		}
	}
	forced := false
	for _, c := range live {
		select {
		case <-c.gone:
			continue
		case <-ctx.Done():
		}
		forced = true
		c.kill("shutdown")
	}
	if first {
		close(s.stopTick)
	}
	s.wg.Wait()
	if forced {
		return ctx.Err()
	}
	return nil
}
