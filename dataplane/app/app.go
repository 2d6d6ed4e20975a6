// Package app is the command line of gemel-target: flags and file become a node.Config, then the node runs.
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

	"github.com/gemel-storage/gemel/dataplane/node"
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
both nodes before it is acknowledged, one node owns each LUN, and initiators learn by implicit ALUA which path is
the good one.

Flags may also stand in a YAML file (--config), under the same names; a flag on the command line wins.
SIGTERM hands ownership over to the peer, logs initiators out and ends the process.

With CAP_IPC_LOCK its memory is locked, with CAP_SYS_RESOURCE it is an I/O flusher: both keep it going where workers on the same machine
are short of memory. Without them it runs as well, and says so. Go's memory limit is 90 % of that of its cgroup, or GOMEMLIMIT where that is lower.

Exit codes:
  0  an orderly stop, or a command that did what it was asked to
  1  it did not start, an orderly stop did not end within 10 s, or a command failed: the message names what is wrong
  2  it crashed
  3  the node serves nothing any more in this life (its disk failed, or it was fenced): start it again, after a wait that
     doubles up to five minutes; it is copied to from the other node by itself
With 1 and 3 the message is written to --termination-message-path as well, where Kubernetes shows it.

The commands below talk to a running node's control API.`,
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
			log, err := cli.Logger(os.Stderr, level, format)
			if err != nil {
				return err
			}
			if err = cfg.Validate(); err != nil {
				return err
			}
			cfg.Logger = log.With("node", cfg.Node)
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
	f.StringVar(&file, "config", "", "YAML file with any of these flags by name")
	f.StringVar(&words, "termination-message-path", exits.MessageFile, "file that gets the last words of a node that ends with an error, if it exists; empty: none")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	cmd.AddCommand(adminCommands()...)
	return cmd
}

// Main runs the command line and returns the exit code (package exits). What went wrong is the last line on stderr.
func Main(ctx context.Context, args []string, stderr io.Writer) int {
	cmd := Command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(stderr, "gemel-target:", err)
	}
	return code(err)
}

// code is the exit code for an error.
func code(err error) int {
	switch {
	case err == nil:
		return exits.OK
	case errors.Is(err, node.ErrLeft):
		return exits.Left
	}
	return exits.Failed
}

// lastWords leaves an error where Kubernetes looks for it.
func lastWords(path string, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, exits.LastWords(path, err.Error()))
}

// stayResident keeps this node going while its machine is short of memory: a worker's dirty pages may be on their way to it. Before anything
// is open: the program may begin again. What is not permitted is told, once.
func stayResident(log *slog.Logger) {
	if err := resident.BecomeFlusher(); err != nil {
		log.Info("this process is no I/O flusher: short of memory it may wait for volumes that it serves itself on this machine", "err", err)
	}
	if err := resident.Lock(); err != nil {
		log.Info("memory is not locked: short of memory this node may be late and lose its lease", "err", err)
	}
}

func addFlags(f *pflag.FlagSet, c *node.Config) {
	f.StringVar(&c.Cluster, "cluster", "", "name of the cluster, part of the target's IQN")
	f.StringVar(&c.Pair, "pair", "", "name of the pair, part of the target's IQN")
	f.StringVar(&c.Node, "node", "", `which node of the pair this is: "a" or "b"`)
	f.StringVar(&c.StateDir, "state-dir", "", "folder for this node's metadata and first backing volume, on XFS for snapshots that share extents")
	f.StringArrayVar(&c.BackingVolumes, "backing-volume", nil, "NAME=DIR of one more backing volume, on a filesystem of its own (repeatable); the first one, \"default\", is in --state-dir")
	f.BoolVar(&c.SharedFilesystem, "shared-filesystem", false, "for trials: backing volumes may lie on one filesystem, whose space then counts for each of them")
	f.StringVar(&c.Arbiter, "arbiter", "", `where the pair's record lives: "lease:NAMESPACE/NAME", a Lease in Kubernetes, or "file:PATH", on storage that both nodes reach`)
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "of a lease arbiter: how to reach the API server; empty: as a pod with a service account does")
	f.StringArrayVar(&c.ArbiterEndpoints, "arbiter-endpoint", nil, "of a lease arbiter: https://HOST:PORT of one more API server to ask (repeatable); in a pod the default is all of them")
	f.StringArrayVar(&c.ISCSIListen, "iscsi-listen", nil, "host:port to serve iSCSI on (repeatable)")
	f.StringArrayVar(&c.Portals, "portal", nil, `advertised portal, "a=host:port" or "b=host:port" (repeatable; both nodes are needed)`)
	f.StringVar(&c.LinkListen, "link-listen", "", "node a: host:port for the link between the nodes")
	f.StringVar(&c.LinkPeer, "link-peer", "", "node b: node a's --link-listen")
	f.StringVar(&c.ControlListen, "control-listen", "", "host:port of the gRPC control API")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "host:port of /metrics, /healthz and /readyz; empty: none")
	f.StringVar(&c.TLSCert, "tls-cert", "", "PEM certificate of this node; without certificates link and control work on loopback only")
	f.StringVar(&c.TLSKey, "tls-key", "", "PEM key of this node")
	f.StringVar(&c.TLSCA, "tls-ca", "", "PEM certificates of the authority that both nodes trust")
	f.Var((*durationFlag)(&c.Lease), "lease", "how long a node may serve without hearing from its peer (default 500ms)")
	c.ScrubInterval, c.ScrubRate = node.Duration(7*24*time.Hour), node.DefaultScrubRate
	f.Var((*durationFlag)(&c.ScrubInterval), "scrub-interval", "compare both copies of everything so often, counted from the end of the last time; 0s: only when asked")
	f.Int64Var(&c.ISCSIMemory, "iscsi-memory", c.ISCSIMemory, "bytes of data that the commands of all sessions may hold; 0: a quarter of what Go may use "+
		"(GOMEMLIMIT, or 90 % of the container's memory), at least 64 MiB, and 1 GiB where neither has a limit")
	f.BoolVar(&c.NoChecksums, "no-checksums", false, "keep no checksums of blocks: damage is not noticed; those that are there are deleted")
	f.Int64Var(&c.ChecksumMemory, "checksum-memory", c.ChecksumMemory, "bytes of checksums that are kept in memory, 1 MiB for each GiB that is read and written at a time; "+
		"0: a sixteenth of what Go may use, at least 16 MiB, and 128 MiB where it has no limit")
	f.Int64Var(&c.ScrubRate, "scrub-rate", c.ScrubRate, "bytes a second that each node compares at most during a scrub, unless it is told otherwise")
	f.StringVar(&c.Preferred, "preferred-node", "", "the node that excludes the other first when neither hears the other (default a)")
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
			return fmt.Errorf("config: %s: there is no setting %q: see --help for the names", path, name)
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
