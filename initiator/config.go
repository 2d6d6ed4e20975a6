package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// AgeLimit is D of the target's rules: a Gemel target never starts a write that became readable
// more than this long ago. An initiator that declared a peer lost sooner than 2*D after its last
// answer could retry a write elsewhere while the target still means to execute it.
const AgeLimit = time.Second

// Timers of a session. Zero fields take the defaults.
type Timers struct {
	Dial         time.Duration // TCP connect; default 3 s
	Login        time.Duration // login phase as a whole; default 5 s
	PingInterval time.Duration // silence after which a NOP-Out is sent; default 1 s
	PingTimeout  time.Duration // further silence after which the peer is lost; default 1.25 s
	// Suspect is how long a command may wait while the target sends nothing before the target is
	// pinged, and SessionConfig.OnSilent is called if it does not answer that either; default 200
	// ms; negative: never.
	Suspect time.Duration
	Command time.Duration // a command unanswered for this long is aborted; default 30 s; negative: never
	TMF     time.Duration // an unanswered task management function costs the session; default 3 s
	Logout  time.Duration // orderly logout; default 2 s
	// AgeLimit lowers the bound that PingInterval + PingTimeout must respect (2*AgeLimit). Only for
	// targets whose own age limit is known to be lower. Default AgeLimit.
	AgeLimit time.Duration
}

// CHAP is one direction's credentials (RFC 7143 §12.1.3). It prints without the secret.
type CHAP struct {
	User   string
	Secret string
}

// String hides the secret.
func (c CHAP) String() string { return fmt.Sprintf("chap(%s)", c.User) }

// GoString hides the secret.
func (c CHAP) GoString() string { return c.String() }

// LogValue hides the secret.
func (c CHAP) LogValue() slog.Value { return slog.StringValue(c.String()) }

// SessionConfig describes one session.
type SessionConfig struct {
	InitiatorName string // iSCSI name, required
	// ISID is the initiator session id (RFC 7143 §11.12.5). Two sessions of one initiator name and
	// ISID to one portal group reinstate each other, so the default is a random one; set it where
	// persistent reservations must outlive the process.
	ISID       [6]byte
	Target     string // iSCSI name; empty makes a discovery session
	Portal     string // host:port
	Auth       *CHAP  // how we authenticate to the target; nil: not
	MutualAuth *CHAP  // how the target must authenticate to us; needs Auth; nil: not
	// CHAPAlgorithms are offered in this order: 5 MD5, 6 SHA-1, 7 SHA-256, 8 SHA3-256. Default 7,
	// 5.
	CHAPAlgorithms []int
	HeaderDigest   bool // CRC32C on headers
	DataDigest     bool // CRC32C on data
	QueueDepth     int  // commands in flight at most, 1..4096; default 128
	MaxRecvData    int  // largest data segment accepted, in bytes, 512..16 MiB-1; default 256 KiB
	// NoImmediateData and ForceR2T ask for ImmediateData=No and InitialR2T=Yes.
	NoImmediateData, ForceR2T bool
	Timers                    Timers
	Log                       *slog.Logger // default: discards
	// Dial opens the connection; the result must be a TCP or Unix socket of the operating system.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// OnAsync is called with asynchronous messages (RFC 7143 §11.9). It must not block.
	OnAsync func(Async)
	// OnSilent is called again and again while commands wait and the target does not even answer a
	// ping. It must not block.
	OnSilent func()
}

// Async is an asynchronous message of the target.
type Async struct {
	Event      byte          // AsyncLogout and so on
	TimeToWait time.Duration // Parameter2 (Time2Wait) for drops
	Deadline   time.Duration // Parameter3: for AsyncLogout how long the target waits for it
}

// Events of asynchronous messages (RFC 7143 §11.9.1).
const (
	AsyncSCSI        byte = 0
	AsyncLogout      byte = 1
	AsyncDropConn    byte = 2
	AsyncDropSession byte = 3
	AsyncNegotiate   byte = 4
)

func (t Timers) withDefaults() (Timers, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Dial, 3*time.Second)
	def(&t.Login, 5*time.Second)
	def(&t.PingInterval, time.Second)
	def(&t.PingTimeout, 1250*time.Millisecond)
	def(&t.Suspect, 200*time.Millisecond)
	def(&t.Command, 30*time.Second)
	def(&t.TMF, 3*time.Second)
	def(&t.Logout, 2*time.Second)
	def(&t.AgeLimit, AgeLimit)
	if t.PingInterval < 0 || t.PingTimeout < 0 || t.PingInterval+t.PingTimeout < 2*t.AgeLimit {
		return t, fmt.Errorf("initiator: ping interval %v + timeout %v is below 2 x the target's age limit %v: "+
			"a write that was reported as lost could still take effect", t.PingInterval, t.PingTimeout, t.AgeLimit)
	}
	return t, nil
}

func (c SessionConfig) withDefaults() (SessionConfig, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("initiator: "+format, args...)) }
	if err := checkName(c.InitiatorName); err != nil {
		bad("initiator name: %w", err)
	}
	if c.Target != "" {
		if err := checkName(c.Target); err != nil {
			bad("target name: %w", err)
		}
	}
	if _, _, err := net.SplitHostPort(c.Portal); err != nil {
		bad("portal %q: %w", c.Portal, err)
	}
	if c.ISID == ([6]byte{}) {
		c.ISID = randomISID()
	}
	if c.QueueDepth == 0 {
		c.QueueDepth = 128
	}
	if c.QueueDepth < 1 || c.QueueDepth > 4096 {
		bad("queue depth %d must be 1 to 4096", c.QueueDepth)
	}
	if c.MaxRecvData == 0 {
		c.MaxRecvData = 256 << 10
	}
	if c.MaxRecvData < 512 || c.MaxRecvData > 1<<24-1 {
		bad("max receive data segment %d must be 512 to 16777215", c.MaxRecvData)
	}
	errs = append(errs, checkCHAP(c.Auth, c.MutualAuth)...)
	if c.CHAPAlgorithms == nil {
		c.CHAPAlgorithms = chapAlgorithms
	}
	for _, a := range c.CHAPAlgorithms {
		if a < 5 || a > 8 {
			bad("chap algorithm %d must be 5 to 8", a)
		}
	}
	var err error
	if c.Timers, err = c.Timers.withDefaults(); err != nil {
		errs = append(errs, err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return c, errors.Join(errs...)
}

// randomISID is of the random format: type 10b, 24 random bits, qualifier 0 (RFC 7143 §11.12.5).
func randomISID() [6]byte {
	n := rand.Uint32()
	return [6]byte{0x80, byte(n >> 16), byte(n >> 8), byte(n), 0, 0}
}

func checkCHAP(auth, mutual *CHAP) (errs []error) {
	bad := func(s string) { errs = append(errs, errors.New("initiator: "+s)) }
	for _, c := range []*CHAP{auth, mutual} {
		if c != nil && (c.User == "" || c.Secret == "" || strings.ContainsRune(c.User, 0)) {
			bad("chap requires a user and a secret")
		}
	}
	if mutual != nil && auth == nil {
		bad("mutual chap requires one-way chap too")
	}
	if mutual != nil && auth != nil && mutual.Secret == auth.Secret {
		bad("the two chap secrets must differ (RFC 7143 §9.2.1)")
	}
	return errs
}

// checkName admits iSCSI names: iqn., eui. or naa., up to 223 bytes, no white space (RFC 7143
// §4.2.7).
func checkName(s string) error {
	if len(s) > 223 {
		return errors.New("longer than 223 bytes")
	}
	if !strings.HasPrefix(s, "iqn.") && !strings.HasPrefix(s, "eui.") && !strings.HasPrefix(s, "naa.") {
		return fmt.Errorf(`%q does not start with "iqn.", "eui." or "naa."`, s)
	}
	for _, r := range s {
		if r <= ' ' || r == 0x7f || r == '=' || r == ',' {
			return fmt.Errorf("%q has a character that is not allowed in an iSCSI name", s)
		}
	}
	return nil
}
