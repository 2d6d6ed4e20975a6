// Package app is the command line of gemel-target: flags and file become a node.Config, then the
// node runs.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/node"
	"github.com/gemel-storage/gemel/dataplane/supervise"
	"github.com/gemel-storage/gemel/internal/cli"
	"github.com/gemel-storage/gemel/internal/exits"
	"github.com/gemel-storage/gemel/internal/memlimit"
	"github.com/gemel-storage/gemel/internal/resident"
)

// Command is the root command.
func Command() *cobra.Command {
	var cfg node.Config
	var file, level, format, words string
	cmd := &cobra.Command{
		Use:   "gemel-target",
		Short: "One node of a dual-node iSCSI target",
		Long: `gemel-target is one node of a pair that serves iSCSI LUNs like a dual-controller array: every write is on
both nodes before it is acknowledged, one node owns each LUN, and initiators learn through implicit ALUA which path
to use.

A YAML file (--config) can set the flags too, under the same names. A flag on the command line overrides the file.
SIGTERM hands ownership over to the peer, logs initiators out and ends the process.

With CAP_IPC_LOCK the process locks its memory, and with CAP_SYS_RESOURCE it is an I/O flusher. Both keep it running when
workers on the same machine run out of memory. Without them the process runs too, and logs that they are missing. Go's memory
limit is 90 % of the limit of the process's cgroup, or GOMEMLIMIT if that is lower.

Exit codes:
  0  the process stopped in an orderly way, or the command succeeded
  1  the process did not start, an orderly stop did not finish within 10 s, or a command failed: the message says what is wrong
  2  the process crashed
  3  the node stopped serving (its disk failed, or it was fenced): start it again, after a wait that doubles up to five
     minutes; the other node then copies its data to it automatically
With --supervisor-listen, the process that is started here is a supervisor: it starts the node's process, and again after a crash,
at once, then after 1 s, 2 s, up to 60 s. It ends with the exit code of a node's process that did not crash. SIGTERM is passed on.

With 1 and 3 the message is also written to --termination-message-path, where Kubernetes shows it.

The commands below use the control API of a running node.`,
		Example: `  gemel-target --cluster demo --pair p0 --node a --state-dir /var/lib/gemel/a --arbiter file:/var/lib/gemel/record \
    --iscsi-listen 127.0.0.1:3260 --portal a=127.0.0.1:3260 --portal b=127.0.0.2:3260 \
    --link-listen 127.0.0.1:3262 --control-listen 127.0.0.1:3261`,
		Version: node.Version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			defer func() { err = lastWords(words, err) }()
			if file != "" {
				if err := mergeFile(cmd.Flags(), file); err != nil {
					return err
				}
			}
			fromEnvironment(&cfg)
			log, err := cli.Logger(os.Stderr, level, format)
			if err != nil {
				return err
			}
			if err = cfg.Validate(); err != nil {
				return err
			}
			cfg.Logger = log.With("node", cfg.Node)
			if cfg.Life, err = supervise.Supervised(); err != nil {
				return err
			}
			if cfg.SupervisorListen != "" && cfg.Life == nil {
				return runSupervisor(cmd.Context(), &cfg)
			}
			stayResident(cfg.Logger)
			defer memlimit.Follow(cmd.Context(), cfg.Logger)()
			n, err := node.New(cfg)
			if err != nil {
				return err
			}
			return n.Run(cmd.Context())
		},
	}
	addFlags(cmd.Flags(), &cfg)
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "YAML file that sets flags by name")
	f.StringVar(&words, "termination-message-path", exits.MessageFile, "existing file to write the last error message to; empty: none")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	cmd.AddCommand(adminCommands()...)
	return cmd
}

// Main runs the command line and returns the exit code (package exits). What went wrong is the last
// line on stderr.
func Main(ctx context.Context, args []string, stderr io.Writer) int {
	cmd := Command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil && !said(err) {
		fmt.Fprintln(stderr, "gemel-target:", err)
	}
	return code(err)
}

// code is the exit code for an error.
func code(err error) int {
	var e ended
	switch {
	case err == nil:
		return exits.OK
	case errors.Is(err, node.ErrLeft):
		return exits.Left
	case errors.As(err, &e):
		return int(e)
	}
	return exits.Failed
}

// lastWords leaves an error where Kubernetes looks for it.
func lastWords(path string, err error) error {
	if err == nil || said(err) {
		return err
	}
	return errors.Join(err, exits.LastWords(path, err.Error()))
}

// stayResident keeps this node going while its machine is short of memory: a worker's dirty pages
// may be on their way to it. Before anything is open: the program may begin again. What is not
// permitted is logged, once.
func stayResident(log *slog.Logger) {
	if err := resident.BecomeFlusher(); err != nil {
		log.Info("this process is not an I/O flusher; if memory runs out, it may wait for volumes that it serves to this machine", "err", err)
	}
	if err := resident.Lock(); err != nil {
		log.Info("memory is not locked; if memory runs out, this node may become slow and lose its lease", "err", err)
	}
}

func addFlags(f *pflag.FlagSet, c *node.Config) {
	f.StringVar(&c.Cluster, "cluster", "", "name of the cluster, part of the target's IQN")
	f.StringVar(&c.Pair, "pair", "", "name of the pair, part of the target's IQN")
	f.StringVar(&c.Node, "node", "", `which node of the pair this is: "a" or "b"`)
	f.StringVar(&c.StateDir, "state-dir", "", "directory for this node's metadata and first backing volume; on XFS, snapshots share extents with their source")
	f.StringArrayVar(&c.BackingVolumes, "backing-volume", nil, "NAME=DIR of another backing volume, on its own filesystem (repeatable); the first backing volume, \"default\", is in --state-dir; NAME/MEMBER=DIR of a member of a backing volume, over whose members the extents of its LUNs rotate: without a NAME=DIR, all data of NAME is in its members")
	f.StringArrayVar(&c.LostVolumes, "lost-volume", nil, "id of a member of a backing volume whose disk is lost (repeatable): the member's new, empty directory takes its place, and LUNs that had extents there are copied from the other node")
	f.StringArrayVar(&c.Tiers, "tier", nil, "VOLUME/MEMBER=TIER of a member of a backing volume (repeatable), \"fast\" or \"capacity\", which is the default; what hosts use most moves to fast members by itself; VOLUME/home is the volume's own directory")
	f.StringVar(&c.Tiering, "tiering", "auto", "whether this node moves extents between the members of fast and capacity: auto, observe only says what auto would do, off counts nothing")
	f.BoolVar(&c.SharedFilesystem, "shared-filesystem", false, "for trials: allow backing volumes on one filesystem, whose space then counts for each of them")
	f.BoolVar(&c.FullCopies, "full-copies", false, "make snapshots and clones also on filesystems that cannot share extents, where each is a full copy, which takes its time and as much space as its source; without this flag such requests are refused")
	f.StringVar(&c.Arbiter, "arbiter", "", `where the pair's record is stored: "lease:NAMESPACE/NAME", a Lease in Kubernetes, or "file:PATH", on storage that both nodes can access`)
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "lease arbiter: kubeconfig file for the API server; empty: use the pod's service account")
	f.StringArrayVar(&c.ArbiterEndpoints, "arbiter-endpoint", nil, "lease arbiter: https://HOST:PORT of another API server (repeatable); default in a pod: all API servers")
	f.StringArrayVar(&c.ISCSIListen, "iscsi-listen", nil, "host:port to serve iSCSI on (repeatable)")
	f.StringArrayVar(&c.Portals, "portal", nil, `advertised portal, "a=host:port" or "b=host:port" (repeatable; required for both nodes)`)
	f.StringVar(&c.LinkListen, "link-listen", "", "node a: host:port to accept the link from node b on")
	f.StringVar(&c.LinkPeer, "link-peer", "", "node b: host:port of node a's --link-listen")
	f.StringVar(&c.SupervisorListen, "supervisor-listen", "", "run the node under a supervisor, which starts the node's process again when it crashes and, at this host:port, reports to the other node that the process has ended; without a supervisor the other node waits for the lease (default $GEMEL_SUPERVISOR_LISTEN)")
	f.StringVar(&c.PeerSupervisor, "peer-supervisor", "", "host:port of the other node's --supervisor-listen (default $GEMEL_PEER_SUPERVISOR)")
	f.StringVar(&c.ControlListen, "control-listen", "", "host:port of the gRPC control API")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "host:port of /metrics, /healthz and /readyz; empty: none")
	f.BoolVar(&c.Profiling, "profiling", false, "serve profiles of Go's runtime, of waits for locks too, at /debug/pprof/ of --metrics-listen, to everyone who can reach that address")
	f.StringVar(&c.TLSCert, "tls-cert", "", "PEM certificate of this node; without certificates, link and control API accept loopback addresses only")
	f.StringVar(&c.TLSKey, "tls-key", "", "PEM key of this node")
	f.StringVar(&c.TLSCA, "tls-ca", "", "PEM certificates of the authority that both nodes trust")
	f.Var((*durationFlag)(&c.Lease), "lease", "how long a node may serve without a message from its peer (default 500ms)")
	c.FailBackDelay = node.Duration(balance.Policy{}.Delay())
	f.StringVar(&c.Balancing, "balancing", "auto", "who decides which node owns a LUN: auto moves LUNs home and to the node that their hosts can use, observe only says what auto would do, off leaves them where they are; it counts until spec.balancing of the StorageCluster is set")
	f.Var((*durationFlag)(&c.FailBackDelay), "fail-back-delay", "how long a node has to be in sync before LUNs return to it: 1s to 1h; it counts until spec.balancing of the StorageCluster is set")
	f.Float64Var(&c.CPUs, "cpus", 0, "how many CPUs this node may use: work is evened between the nodes once one of them uses more than 40 % of that; 0: the limit of its cgroup, or all CPUs")
	c.ScrubInterval, c.ScrubRate = node.Duration(7*24*time.Hour), node.DefaultScrubRate
	f.Var((*durationFlag)(&c.ScrubInterval), "scrub-interval", "time from the end of a scrub of everything to the start of the next one; 0s: scrub on request only")
	f.Int64Var(&c.ISCSIMemory, "iscsi-memory", c.ISCSIMemory, "bytes of data that the commands of all sessions may hold; 0: a quarter of what Go may use "+
		"(GOMEMLIMIT, or 90 % of the container's memory), at least 64 MiB, and 1 GiB if neither is set")
	f.BoolVar(&c.NoChecksums, "no-checksums", false, "keep no checksums of blocks: damage is not detected, and existing checksums are deleted")
	f.Int64Var(&c.ChecksumMemory, "checksum-memory", c.ChecksumMemory, "bytes of checksums to keep in memory, 1 MiB for each GiB of data in active use; "+
		"0: a sixteenth of what Go may use, at least 16 MiB, and 128 MiB if it has no limit")
	f.Int64Var(&c.ScrubRate, "scrub-rate", c.ScrubRate, "limit of bytes per second that each node compares during a scrub, unless the scrub request sets another limit")
	f.StringVar(&c.Preferred, "preferred-node", "", "node that excludes the other node first when the link between them is down (default a)")
	f.Var(&c.HeaderDigest, "header-digest", "CRC32C header digests: allow, require or refuse")
	f.Var(&c.DataDigest, "data-digest", "CRC32C data digests: allow, require or refuse")
	f.StringVar(&c.BenchLUN, "bench-lun", "", `for benchmarks: export an unmirrored LUN 0 to a host, "IQN=BYTES"`)
}

// durationFlag is a duration on the command line.
type durationFlag node.Duration

func (d *durationFlag) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
func (d *durationFlag) Type() string { return "duration" }
func (d *durationFlag) Set(s string) error {
	return (*node.Duration)(d).UnmarshalText([]byte(s))
}

// mergeFile sets every flag that the file names and the command line does not.
func mergeFile(f *pflag.FlagSet, path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(raw, &values); err != nil {
		return fmt.Errorf("config: %s: %w", path, err)
	}
	for name, v := range values {
		fl := f.Lookup(name)
		if fl == nil || name == "config" {
			return fmt.Errorf("config: %s: unknown setting %q: --help lists the names", path, name)
		}
		if fl.Changed {
			continue
		}
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, x := range list {
			if err := f.Set(name, fmt.Sprint(x)); err != nil {
				return fmt.Errorf("config: %s: %s: %w", path, name, err)
			}
		}
	}
	return nil
}
