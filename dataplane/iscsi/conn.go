package iscsi

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/halfopen"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// Sizes of the input buffer: small until there is use for more.
const (
	loginBuffer = pdu.HeaderLen + loginSegment
	idleBuffer  = 32 << 10
	// maxPDUOverhead is what surrounds a data segment: BHS, AHS, padding, two digests.
	maxPDUOverhead = pdu.HeaderLen + 255*4 + 3 + 2*pdu.DigestLen
)

// conn is one connection and, there being one connection per session, the session.
type conn struct {
	srv    *Server
	log    *slog.Logger
	sock   *socket
	remote string
	dead   chan struct{} // closed by kill
	gone   chan struct{} // closed when nothing of the connection is left, at the Device neither

	// Set by the server under its mutex.
	host     string // initiator once its admission was asked
	loggedIn bool
	placed   bool            // counted among the sessions
	half     *halfopen.Entry // until it is logged in
	tsih     uint16

	// Fixed when the full-feature phase begins.
	id        scsi.NexusID
	cid       uint16
	discovery bool
	params    pdu.Params
	since     time.Time
	nexus     *scsi.Nexus
	opened    bool

	maxSend  atomic.Uint32 // MaxRecvDataSegmentLength of the initiator; it may declare a new one at any time
	lastRecv atomic.Int64  // clock of the last read
	pinged   atomic.Int64  // clock of an unanswered ping, 0 without
	wrote    atomic.Int64  // clock of the last write command

	suspected atomic.Pointer[suspicion]

	// Of the reader.
	in        []byte
	r, w      int
	arrived   int64  // R11b: earliest time the bytes in the buffer can have become readable
	lastLoop  int64  // clock when the last read returned
	pauses    uint32 // the server's count when the connection began
	text      []byte // of Text requests with the C bit
	answer    []byte // rest of a Text response
	answerTTT uint32
	logout    uint32 // ITT of the Logout request that ended the reader
	bhs       [pdu.HeaderLen]byte
	starts    scsi.Outbox // what the commands of the batch make the other node do

	readState   // drain.go
	mu          sync.Mutex
	cond        *sync.Cond // memory freed, commands ended, or dead
	output                 // output.go; guarded by mu
	table       [tableSize]*command
	free        *command
	pings       []ping   // that wait for their answers, in order
	asked       []func() // who wait for the next
	killed      bool
	ending      bool // no more answers: the initiator has logged out
	reason      string
	statSN      uint32
	expCmdSN    uint32
	maxCmdSN    uint32
	nextTTT     uint32
	inFlight    int   // SCSI commands accepted and not answered
	submitted   int   // those of them the Device has
	managing    int   // task management functions the Device has
	memoryState       // memory.go
	sendingAt   int64 // clock when the socket was full, or took something after that; 0: it is not
}

func newConn(s *Server, nc net.Conn) (*conn, error) {
	sock, err := newSocket(nc)
	if err != nil {
		return nil, err
	}
	c := &conn{
		srv: s, log: s.log.With("remote", nc.RemoteAddr().String()), sock: sock, remote: nc.RemoteAddr().String(),
		dead: make(chan struct{}), gone: make(chan struct{}),
		in: make([]byte, loginBuffer), nextTTT: 1, pauses: s.pauses.Load(),
	}
	c.cond = sync.NewCond(&c.mu)
	c.kick = make(chan struct{}, 1)
	sock.onRead = c.onRead
	return c, nil
}

// protocolError is something the initiator must not send; it costs the connection.
type protocolError struct{ what string }

func (e protocolError) Error() string { return "protocol error: " + e.what }

// errLoggedOut ends the reader after an orderly logout.
var errLoggedOut = errors.New("logged out")

// run is the connection's goroutine from accept to the end.
func (c *conn) run() {
	defer close(c.gone)
	defer c.srv.forget(c)
	err := c.login()
	if err != nil {
		c.srv.noteFailed(c, err)
	} else {
		c.log.Info("logged in", "initiator", c.id.Initiator, "discovery", c.discovery,
			"header_digest", c.params.HeaderDigest, "data_digest", c.params.DataDigest)
		err = c.fullFeature()
	}
	c.finish(err)
}

func (c *conn) finish(err error) {
	var pe protocolError
	if errors.As(err, &pe) {
		c.srv.stats.ProtocolErrors.Add(1)
	}
	orderly := errors.Is(err, errLoggedOut)
	if !orderly {
		c.kill("connection ended")
	}
	c.endNexus()
	if orderly {
		c.answerLogout()
		c.kill("logged out")
	}
	c.endDrains()
	c.stopWriter()
	c.mu.Lock()
	reason := c.reason
	c.mu.Unlock()
	if !orderly {
		c.srv.stats.Dropped.Add(1)
	}
	if c.loggedIn {
		c.log.Info("session ended", "initiator", c.id.Initiator, "reason", reason, "err", err)
	}
}

// endNexus returns when no command of the session is or ever will be executed.
func (c *conn) endNexus() {
	c.dropGathering(func(*command) bool { return true })
	c.settled()
	if c.opened {
		done := make(chan struct{})
		c.srv.device.CloseNexus(c.nexus, func() { close(done) })
		<-done
		c.opened = false
	}
	c.mu.Lock()
	for c.submitted > 0 || c.managing > 0 {
		c.cond.Wait()
	}
	c.mu.Unlock()
}

// kill closes the connection from any goroutine; the reader then ends it. No command is accepted
// after kill returned.
func (c *conn) kill(reason string) {
	c.mu.Lock()
	if c.killed {
		c.mu.Unlock()
		return
	}
	c.killed, c.reason = true, reason
	close(c.dead)
	c.cond.Broadcast()
	c.mu.Unlock()
	_ = c.sock.nc.Close()
}

// fullFeature reads and executes PDUs until the connection ends.
func (c *conn) fullFeature() error {
	c.grow(idleBuffer)
	c.arrived = c.srv.cfg.Clock()
	c.lastLoop = c.arrived
	c.lastRecv.Store(c.arrived)
	c.beginBatch()
	defer c.flushBatch()
	for {
		// Everything complete in the buffer is executed before the next read, and before that read
		// the answers go out (in fillDirect): that is the batch.
		if err := c.dispatch(); err != nil {
			return err
		}
	}
}

// need makes n bytes available at c.in[c.r:].
func (c *conn) need(n int) error {
	for c.w-c.r < n {
		c.compact(n)
		if err := c.fill(nil); err != nil {
			return err
		}
	}
	return nil
}

// compact makes room for n bytes from c.r, and for a good read in general.
func (c *conn) compact(n int) {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	if n > len(c.in) {
		c.grow(n)
	}
	if c.r > 0 && (c.r+n > len(c.in) || len(c.in)-c.w < len(c.in)/4) {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
}

func (c *conn) grow(n int) {
	if n <= len(c.in) {
		return
	}
	b := make([]byte, n)
	c.w = copy(b, c.in[c.r:c.w])
	c.in, c.r = b, 0
}

// fill reads once: into dst first, the rest into the input buffer. It sends the batch's answers
// before it waits. It returns how much of dst was filled.
func (c *conn) fill(dst []byte) error {
	_, err := c.fillDirect(dst)
	return err
}

func (c *conn) fillDirect(dst []byte) (int, error) {
	if c.lastLoop != 0 {
		c.flushBatch()
		now := c.srv.cfg.Clock()
		// R11b: the loop was not reading, so it was stopped.
		if now-c.lastLoop > int64(c.srv.cfg.MaxAge) {
			c.kill("paused")
			return 0, errPaused
		}
		c.lastLoop = now
	}
	space := c.in[c.w:]
	c.hadToWait = false
	n, err := c.sock.read(dst, space)
	if err != nil {
		select {
		case <-c.dead:
			return 0, errKilled
		default:
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, errLoginTimeout
		}
		return 0, err
	}
	if c.lastLoop != 0 {
		c.beginBatch()
	}
	direct := min(n, len(dst))
	c.w += n - direct
	if c.lastLoop == 0 {
		return direct, nil // login
	}
	now := c.srv.cfg.Clock()
	// The whole process may have been stopped while this goroutine waited in read: then what it got
	// may be old.
	if now-c.srv.lastTick.Load() > int64(c.srv.cfg.MaxAge) || c.srv.pauses.Load() != c.pauses {
		c.kill("the process was paused")
		return 0, errPaused
	}
	// Bytes that were there without waiting became readable at some time since the last read.
	if c.arrived = c.lastLoop; c.hadToWait {
		c.arrived = now
	}
	c.lastLoop = now
	c.lastRecv.Store(now)
	c.pinged.Store(0)
	if c.w == len(c.in) && n-direct == len(space) && len(c.in) < c.fullBuffer() {
		c.grow(min(4*len(c.in), c.fullBuffer()))
	}
	return direct, nil
}

// fullBuffer is the largest input buffer: any PDU fits.
func (c *conn) fullBuffer() int { return c.srv.cfg.Limits.RecvSegment + maxPDUOverhead }

var (
	errKilled       = errors.New("the target closed the connection")
	errPaused       = errors.New("the process was paused for too long to execute buffered commands")
	errLoginTimeout = errors.New("the login did not finish in time")
)
