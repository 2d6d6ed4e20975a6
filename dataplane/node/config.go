// Package node is one node of a pair at work: it gives the state machine of package pair its clock,
// disk, network and arbiter, and joins it to the iSCSI front end, the device server and the control
// API.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/supervise"
)

// Config of a node. Names are those of the flags of gemel-target; every error names the field.
type Config struct {
	Cluster string `json:"cluster"` // part of the IQN: lower case letters, digits, dashes
	Pair    string `json:"pair"`
	Node    string `json:"node"` // "a" or "b"

	StateDir string `json:"state-dir"` // the node's own metadata and its first backing volume, "default"
	Arbiter  string `json:"arbiter"`   // "lease:NAMESPACE/NAME" or "file:PATH"

	BackingVolumes   []string `json:"backing-volume"`    // more of them: NAME=DIR, and members of them: NAME/MEMBER=DIR, each on a filesystem of its own
	LostVolumes      []string `json:"lost-volume"`       // ids of members whose disk is gone
	Tiers            []string `json:"tier"`              // VOLUME/MEMBER=TIER of members that are fast; VOLUME/home is the volume's own directory
	Tiering          string   `json:"tiering"`           // auto, observe or off; empty: auto
	SharedFilesystem bool     `json:"shared-filesystem"` // or not, for trials
	FullCopies       bool     `json:"full-copies"`       // snapshots and clones also where the filesystem cannot share extents

	Kubeconfig       string   `json:"kubeconfig"`        // lease: how to reach the API server; empty: as a pod does
	ArbiterEndpoints []string `json:"arbiter-endpoints"` // lease: URLs of API servers beside that one

	ISCSIListen []string `json:"iscsi-listen"` // host:port
	Portals     []string `json:"portals"`      // advertised, "a=host:port" and "b=host:port", any number
	LinkListen  string   `json:"link-listen"`  // node a
	LinkPeer    string   `json:"link-peer"`    // node b: node a's link address
	// SupervisorListen makes the process that has it a supervisor, unless a supervisor started it.
	SupervisorListen string `json:"supervisor-listen"`
	PeerSupervisor   string `json:"peer-supervisor"` // the other node's SupervisorListen; empty: it has none

	ControlListen string `json:"control-listen"` // gRPC
	MetricsListen string `json:"metrics-listen"` // /metrics, /healthz, /readyz; empty: none
	Profiling     bool   `json:"profiling"`      // /debug/pprof there, too

	TLSCert string `json:"tls-cert"` // PEM files; all three or none
	TLSKey  string `json:"tls-key"`
	TLSCA   string `json:"tls-ca"`

	Lease          Duration `json:"lease"`
	Preferred      string   `json:"preferred-node"`  // excludes first when neither node hears the other
	Balancing      string   `json:"balancing"`       // auto, observe or off; empty: auto
	FailBackDelay  Duration `json:"fail-back-delay"` // how long a node has to be in sync before LUNs return to it; 0: 30 s
	CPUs           float64  `json:"cpus"`            // that the node may use, to judge by how much it is used; 0: the limit of its cgroup
	ScrubInterval  Duration `json:"scrub-interval"`  // between two scheduled scrubs; 0: none
	ScrubRate      int64    `json:"scrub-rate"`      // bytes a second at most; 0: DefaultScrubRate
	NoChecksums    bool     `json:"no-checksums"`    // keep no checksums of blocks; those that are there are deleted
	ChecksumMemory int64    `json:"checksum-memory"` // bytes of checksums in memory; 0: a sixteenth of what Go may use

	ISCSIMemory  int64              `json:"iscsi-memory"` // bytes that commands of all sessions may hold; 0: a quarter of what Go may use
	HeaderDigest iscsi.DigestPolicy `json:"header-digest"`
	DataDigest   iscsi.DigestPolicy `json:"data-digest"`
	BenchLUN     string             `json:"bench-lun"` // hidden: an unmirrored LUN for benchmarks, "HOSTIQN=SIZE"

	earlier        bool     // be a release that knows no link features; tests
	later          bool     // be a release that knows every log entry; tests
	CheckpointIdle Duration `json:"-"` // no write for so long before a checkpoint; tests
	TierRound      Duration `json:"-"` // between two decisions about what lies on the fast tier; 0: a minute; tests

	Logger *slog.Logger     `json:"-"`
	Faults store.FaultFunc  `json:"-"` // of the store; tests
	Cached store.CachedFunc `json:"-"` // which reads the page cache answers, where there are Faults; tests

	Life    *supervise.Life `json:"-"` // what this process's supervisor gave it; nil: it has none
	Outside Outside         `json:"-"`
}

// Duration reads "500ms" from a configuration file.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// minISCSIMemory is the least for the commands of all sessions (bytes): a quarter is for data that
// comes unasked, and the longest command has to fit the rest.
const minISCSIMemory = 64 << 20

// ErrConfig is wrapped by every error of Validate.
var ErrConfig = errors.New("configuration")

var nameRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func bad(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...))
}

// Validate checks every field and returns all that is wrong.
func (c *Config) Validate() error {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if !nameRE.MatchString(c.Cluster) {
		add(bad("cluster", "%q must have 1 to 63 lower-case letters, digits or dashes", c.Cluster))
	}
	if !nameRE.MatchString(c.Pair) {
		add(bad("pair", "%q must have 1 to 63 lower-case letters, digits or dashes", c.Pair))
	}
	self, err := pair.ParseNode(c.Node)
	if err != nil {
		add(bad("node", "%v", err))
	}
	if c.StateDir == "" {
		add(bad("state-dir", "is required: the directory for this node's data"))
	}
	if _, _, err := c.volumes(); err != nil {
		add(err)
	} else if _, err := c.tiers(); err != nil {
		add(err)
	}
	if _, ok := balance.ParseMode(c.Tiering); !ok {
		add(bad("tiering", `%q must be "auto", "observe" or "off"`, c.Tiering))
	}
	errs = append(errs, c.validateArbiter()...)
	if len(c.ISCSIListen) == 0 {
		add(bad("iscsi-listen", "at least one host:port is required"))
	}
	for _, a := range c.ISCSIListen {
		add(c.checkAddr("iscsi-listen", a, false))
	}
	if c.ControlListen == "" {
		add(bad("control-listen", "is required: host:port of the control API"))
	} else {
		add(c.checkAddr("control-listen", c.ControlListen, true))
	}
	switch {
	case err == nil && self == pair.A && c.LinkListen == "":
		add(bad("link-listen", "is required on node a: node b connects to it"))
	case err == nil && self == pair.B && c.LinkPeer == "":
		add(bad("link-peer", "is required on node b: the link address of node a"))
	}
	if c.LinkListen != "" {
		add(c.checkAddr("link-listen", c.LinkListen, true))
	}
	if c.LinkPeer != "" {
		add(c.checkAddr("link-peer", c.LinkPeer, true))
	}
	if c.SupervisorListen != "" {
		add(c.checkAddr("supervisor-listen", c.SupervisorListen, true))
	}
	if c.PeerSupervisor != "" {
		add(c.checkAddr("peer-supervisor", c.PeerSupervisor, true))
	}
	if c.Profiling && c.MetricsListen == "" {
		add(bad("profiling", "profiles are served at metrics-listen, which is empty: set it, or leave profiling out"))
	}
	if c.MetricsListen != "" {
		add(c.checkAddr("metrics-listen", c.MetricsListen, false))
	}
	seen := map[string]bool{}
	for _, p := range c.Portals {
		n, addr, ok := strings.Cut(p, "=")
		if _, err := pair.ParseNode(n); !ok || err != nil {
			add(bad("portal", `%q must be "a=host:port" or "b=host:port"`, p))
			continue
		}
		seen[n] = true
		add(c.checkAddr("portal", addr, false))
	}
	if !seen["a"] || !seen["b"] {
		add(bad("portal", "each node needs at least one portal: initiators learn all paths from either node"))
	}
	if set := c.TLSCert != "" || c.TLSKey != "" || c.TLSCA != ""; set && (c.TLSCert == "" || c.TLSKey == "" || c.TLSCA == "") {
		add(bad("tls-cert", "set all of tls-cert, tls-key and tls-ca, or none"))
	}
	if l := time.Duration(c.Lease); l != 0 && (l < 100*time.Millisecond || l > 30*time.Second) {
		add(bad("lease", "%v is outside 100ms to 30s", l))
	}
	if _, ok := balance.ParseMode(c.Balancing); !ok {
		add(bad("balancing", `%q must be "auto", "observe" or "off"`, c.Balancing))
	}
	if !(c.CPUs == 0 || c.CPUs >= 0.01 && c.CPUs <= 4096) {
		add(bad("cpus", "%v must be 0.01 to 4096, or 0 for the limit of the process's cgroup", c.CPUs))
	}
	if d := time.Duration(c.FailBackDelay); d != 0 && (d < time.Second || d > time.Hour) {
		add(bad("fail-back-delay", "%v is outside 1s to 1h", d))
	}
	if d := time.Duration(c.ScrubInterval); d < 0 || d > 0 && d < time.Second {
		add(bad("scrub-interval", "%v must be 0 (no scheduled scrubs) or at least 1s", d))
	}
	if c.ScrubRate < 0 {
		add(bad("scrub-rate", "%d must be 0 (the default) or a positive number of bytes per second", c.ScrubRate))
	}
	if c.ChecksumMemory != 0 && c.ChecksumMemory < minChecksumMemory {
		add(bad("checksum-memory", "%d must be 0 (a sixteenth of GOMEMLIMIT) or at least %d bytes", c.ChecksumMemory, int64(minChecksumMemory)))
	}
	if c.ISCSIMemory != 0 && c.ISCSIMemory < minISCSIMemory {
		add(bad("iscsi-memory", "%d must be 0 (a quarter of GOMEMLIMIT) or at least %d bytes", c.ISCSIMemory, minISCSIMemory))
	}
	if c.Preferred != "" {
		if _, err := pair.ParseNode(c.Preferred); err != nil {
			add(bad("preferred-node", "%v", err))
		}
	}
	return errors.Join(errs...)
}

// checkAddr refuses what is no address, and an address beyond loopback where certificates are
// missing.
func (c *Config) checkAddr(field, addr string, secured bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return bad(field, "%q is not host:port", addr)
	}
	if secured && c.TLSCert == "" {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return bad(field, "%q is not a loopback address: set tls-cert, tls-key and tls-ca, or use loopback", addr)
		}
	}
	return nil
}

// Supervisor is the supervisor of this node. The configuration must be valid.
func (c *Config) Supervisor(ctx context.Context) (supervise.Config, error) {
	out := supervise.Config{Cluster: c.Cluster, Pair: c.Pair, Node: c.Node, Logger: c.Logger}
	o := c.Outside
	if err := o.defaults(); err != nil {
		return out, err
	}
	out.Boot = o.Boot
	var err error
	if c.TLSCert != "" {
		if out.TLS, err = loadTLS(c); err != nil {
			return out, err
		}
	}
	if out.Listen, err = o.Listen(ctx, "tcp", c.SupervisorListen); err != nil {
		return out, bad("supervisor-listen", "%v", err)
	}
	return out, nil
}

// TargetIQN is the one target name of a pair.
func (c *Config) TargetIQN() string {
	return "iqn.2026-11.storage.gemel:" + c.Cluster + "." + c.Pair
}
