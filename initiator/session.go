package initiator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// reservedSlots is how many task tags are kept for pings, task management and logout.
const reservedSlots = 16

// Session is one connection to one portal in the full feature phase (MaxConnections = 1,
// ErrorRecoveryLevel = 0). Its methods are safe for concurrent use.
type Session struct {
	cfg  SessionConfig
	conn net.Conn
	p    pdu.Params
	tpgt string

	in  *socketReader
	sw  *socketWriter
	rx  receiver
	now func() int64

	expStatSN atomic.Uint32
	lastHeard atomic.Int64 // monotonic ns of the last byte received
	slots     []slot       // written under mu, read by the reader

	mu          sync.Mutex
	idle        sync.Cond // writing became false
	cmdSN       uint32
	maxCmdSN    uint32
	free        []uint16
	head, tail  *Command   // waiting for the window, a tag or the end of an abort
	deferred    []*Command // answered while their data was still being written
	out, wr     *outBatch  // being filled; being written by the one that set writing
	batchNumber uint64
	written     uint64 // batches up to this one are written
	writing     bool
	corked      bool // the reader is in callbacks and will flush
	closing     bool // logout has begun: no new commands
	active      int  // SCSI commands accepted and not yet ended
	dozing      bool // keepalive found no command to watch
	drained     chan struct{}
	err         error

	wake chan struct{} // to the writer: finish wr
	ripe chan struct{} // to the writer: look at deferred
	busy chan struct{} // to keepalive, to look now: a command came while dozing was set, or the partner of the target has taken over
	stop chan struct{} // closed by fail
	done chan struct{} // closed when every goroutine has ended and every command is answered
}

var processStart = time.Now()

// monotonic is nanoseconds since the process started; below zero in a bubble of testing/synctest,
// whose time is that of 2000.
func monotonic() int64 { return int64(time.Since(processStart)) }

// Login connects, logs in and starts the full feature phase. The context bounds the login only.
func Login(ctx context.Context, cfg SessionConfig) (*Session, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Target == "" {
		return nil, errors.New("initiator: a normal session requires a target name")
	}
	l, err := connect(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	s, err := newSession(cfg, l)
	if err != nil {
		_ = l.conn.Close()
		return nil, err
	}
	s.start()
	return s, nil
}

// connect dials and logs in; on error nothing stays open.
func connect(ctx context.Context, cfg *SessionConfig) (*loginState, error) {
	dctx, cancel := context.WithTimeout(ctx, cfg.Timers.Dial)
	defer cancel()
	conn, err := cfg.Dial(dctx, "tcp", cfg.Portal)
	if err != nil {
		return nil, fmt.Errorf("portal %s: %w", cfg.Portal, err)
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
	}
	l := &loginState{cfg: cfg, conn: conn}
	if err := l.run(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("portal %s: %w", cfg.Portal, err)
	}
	return l, nil
}

func newSession(cfg SessionConfig, l *loginState) (*Session, error) {
	sc, ok := l.conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("initiator: connection of type %T has no socket", l.conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	n := cfg.QueueDepth + reservedSlots
	s := &Session{
		cfg: cfg, conn: l.conn, p: l.p, tpgt: l.tpgt, now: monotonic,
		in: newSocketReader(raw), sw: newSocketWriter(raw),
		slots: make([]slot, n), free: make([]uint16, n),
		cmdSN: l.cmdSN, maxCmdSN: l.maxCmd,
		out: &outBatch{number: 1}, wr: &outBatch{}, batchNumber: 1,
		wake: make(chan struct{}, 1), ripe: make(chan struct{}, 1), busy: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	s.idle.L = &s.mu
	for i := range s.free {
		s.free[i] = uint16(n - 1 - i)
	}
	s.expStatSN.Store(l.statSN)
	s.lastHeard.Store(s.now())
	s.rx.init(s)
	resetAtEnd(s.conn, true)
	return s, nil
}

func (s *Session) start() {
	var wg sync.WaitGroup
	wg.Go(s.readLoop)
	wg.Go(s.writeLoop)
	wg.Go(s.keepalive)
	go func() {
		wg.Wait()
		s.finish()
		close(s.done)
	}()
}

// Portal is the address the session was opened to; GroupTag the target's TargetPortalGroupTag, if
// it declared one.
func (s *Session) Portal() string   { return s.cfg.Portal }
func (s *Session) GroupTag() string { return s.tpgt }

// Done is closed when the session has ended: its goroutines are gone and every command was called
// back.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is why the session ended, nil while it lives. ErrClosed after an orderly end.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Submit queues a command and returns at once; Done is called later, never from within Submit. An
// error means that the command was not accepted and Done will not be called. Commands are given
// CmdSNs in the order of Submit calls.
func (s *Session) Submit(c *Command) error {
	if err := c.check(); err != nil {
		return err
	}
	c.reset(s.now())
	c.kind = kindSCSI
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuseLocked(); err != nil {
		return err
	}
	s.active++
	if s.dozing {
		s.dozing = false
		s.look()
	}
	s.enqueueLocked(c)
	s.startPendingLocked()
	s.kickLocked()
	return nil
}

func (s *Session) refuseLocked() error {
	if s.err != nil {
		return s.lost(s.err)
	}
	if s.closing {
		return fmt.Errorf("%w: %w", ErrSessionLost, ErrClosed)
	}
	return nil
}

func (s *Session) lost(cause error) error {
	if errors.Is(cause, ErrSessionLost) {
		return cause
	}
	return fmt.Errorf("%w: portal %s: %w", ErrSessionLost, s.cfg.Portal, cause)
}

func (s *Session) enqueueLocked(c *Command) {
	if s.tail == nil {
		s.head = c
	} else {
		s.tail.next = c
	}
	s.tail = c
}

// startPendingLocked gives tags and sequence numbers to waiting commands as far as the target's
// window (RFC 7143 §4.2.2.1) and the queue depth allow.
func (s *Session) startPendingLocked() {
	for s.head != nil && len(s.free) > reservedSlots && int32(s.maxCmdSN-s.cmdSN) >= 0 && s.err == nil {
		c := s.head
		if s.head = c.next; s.head == nil {
			s.tail = nil
		}
		c.next = nil
		c.cmdSN = s.cmdSN
		s.cmdSN++
		s.takeSlotLocked(c)
		s.sendCommandLocked(c)
	}
}

func (s *Session) takeSlotLocked(c *Command) {
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	sl := &s.slots[i]
	sl.gen = (sl.gen + 1) & 0x7fff // a tag is never the reserved value ffffffff
	c.itt = uint32(sl.gen)<<16 | uint32(i)
	sl.cmd.Store(c)
}

// lookup finds the task of a tag; nil when there is none.
func (s *Session) lookup(itt uint32) *Command {
	i := itt & 0xffff
	if int(i) >= len(s.slots) {
		return nil
	}
	if c := s.slots[i].cmd.Load(); c != nil && c.itt == itt {
		return c
	}
	return nil
}

func (s *Session) releaseLocked(c *Command) {
	i := c.itt & 0xffff
	s.slots[i].cmd.Store(nil)
	s.free = append(s.free, uint16(i))
	if c.kind == kindSCSI {
		s.active--
		s.checkDrainedLocked()
	}
}

// resetAtEnd has the socket drop what it has not sent yet, and send RST, however it is closed, also
// by the end of the process: these bytes must not reach the target later, when the commands that
// they belong to are repeated over another session, maybe to the same node.
func resetAtEnd(conn net.Conn, reset bool) {
	sec := -1 // close sends the rest, and FIN
	if reset {
		sec = 0
	}
	if c, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(sec) // fails only on a socket that has ended already
	}
}

// fail ends the session; the first cause is kept. Only what ends in order is not reset. The socket
// is closed before any command is given back.
func (s *Session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if s.closing && s.active == 0 {
		err = ErrClosed // whatever ended it, nothing was cut short
		resetAtEnd(s.conn, false)
	}
	s.err = err
	close(s.stop)
	_ = s.conn.Close()
}

// finish runs when reader, writer and keepalive have ended: no goroutine touches callers' buffers
// any more.
func (s *Session) finish() {
	s.mu.Lock()
	// A writer that saw stop first leaves its batch behind; one that is inside try ends because the
	// socket is closed.
	select {
	case <-s.wake:
		s.writing = false
	default:
	}
	for s.writing {
		s.idle.Wait()
	}
	err := s.lost(s.err)
	var all []*Command
	for i := range s.slots {
		if c := s.slots[i].cmd.Load(); c != nil {
			s.slots[i].cmd.Store(nil)
			if !c.ended {
				c.Err = err
			}
			all = append(all, c)
		}
	}
	for c := s.head; c != nil; c = c.next {
		c.Err = err
		all = append(all, c)
	}
	all = append(all, s.deferred...) // these have their answers
	s.head, s.tail, s.deferred = nil, nil, nil
	s.mu.Unlock()
	for _, c := range all {
		c.next = nil
		c.Done(c)
	}
	s.cfg.Log.Debug("iscsi session ended", "portal", s.cfg.Portal, "cause", err)
}
