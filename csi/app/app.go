// Package app is the command line of gemel-csi.
package app

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/gemel-storage/gemel/csi/attach/userspace"
	"github.com/gemel-storage/gemel/csi/attach/userspace/holder"
	"github.com/gemel-storage/gemel/internal/cli"
	"github.com/gemel-storage/gemel/internal/memlimit"
)

// Version of this build, set by the linker.
var Version = "dev"

// holderCommand is the hidden subcommand that serves one attachment.
const holderCommand = "attach-holder"

// Command is the root command.
func Command() *cobra.Command {
	var c config
	var level, format string
	cmd := &cobra.Command{
		Use:   "gemel-csi",
		Short: "CSI plugin csi.gemel.storage",
		Long: `gemel-csi provides the LUNs of Gemel as CSI volumes: mounted (xfs, ext4) or raw.

The controller service creates LogicalUnits, which the operator reconciles on the pairs of a StorageCluster (--backend objects:
in a cluster, or with --kubeconfig), or uses the control API of both nodes of one pair (--backend direct).

Before several nodes mount a filesystem read-only, the node service of one of them replays its log and reports this to the pair
(--pair-endpoint) or the operator (--enroll-endpoint).

The node service attaches a LUN with the worker's open-iscsi and dm-multipath (--attach kernel; see docs/workers.md for the
requirements), or with a separate process (--attach userspace: iSCSI initiator, FUSE file, loop device; needs /dev/fuse and
/dev/loop-control). --attach auto uses the kernel, or userspace if the worker's kernel has no iSCSI or no dm-multipath; a missing
package or daemon is reported instead. Attached volumes continue to work while the plugin restarts. Both ways need root, mkfs.xfs,
xfs_growfs, mkfs.ext4, e2fsck, resize2fs, dumpe2fs, blkid and mount.

After SIGTERM, running calls complete and the plugin exits; volumes stay attached and mounted.`,
		Example: `  gemel-csi --endpoint unix:///run/gemel/csi.sock --mode all --state-dir /var/lib/gemel/csi \
    --pair-endpoint 127.0.0.1:3261 --pair-endpoint 127.0.0.2:3261`,
		Version: Version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := cli.Logger(os.Stderr, level, format)
			if err != nil {
				return err
			}
			klog.SetSlogLogger(log)
			if err := c.check(); err != nil {
				return err
			}
			defer memlimit.Follow(cmd.Context(), log)() // not in holders, which are many in one cgroup
			return c.run(cmd.Context(), log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Endpoint, "endpoint", "", "Unix socket to serve CSI on: unix:///path")
	f.StringVar(&c.Mode, "mode", "all", "services to run: controller, node or all")
	f.StringVar(&c.Backend, "backend", "", "controller service: objects (Kubernetes) or direct (one pair); default: direct with --pair-endpoint, objects without")
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "path to a kubeconfig file; default: the pod's service account")
	f.BoolVar(&c.NodeObject, "node-object", false, "node service: write the Host object of the Kubernetes node --node-name")
	f.StringSliceVar(&c.TopologyKeys, "topology-keys", nil, "node service, with --node-object: labels of the Kubernetes node that are reported to Kubernetes besides its zone and region, separated by commas; at most 16; a label that the node does not have is left out")
	f.StringArrayVar(&c.PairEndpoints, "pair-endpoint", nil, "host:port of the control API of a node of the pair; repeat it for both nodes")
	f.StringVar(&c.TLSCert, "tls-cert", "", "PEM certificate for the control API; without certificates only loopback addresses are allowed")
	f.StringVar(&c.TLSKey, "tls-key", "", "PEM key of that certificate")
	f.StringVar(&c.TLSCA, "tls-ca", "", "PEM certificates of the authority that signed the nodes' certificates")
	f.StringVar(&c.Cluster, "cluster", "", "with TLS: the cluster that the nodes' certificates must name")
	f.StringVar(&c.Pair, "pair", "", "with TLS: the pair that the nodes' certificates must name")
	f.StringVar(&c.StateDir, "state-dir", "", "node service: folder for its records; must survive restarts")
	f.StringVar(&c.NodeIQN, "node-iqn", "", "node service: iSCSI name of this node; empty: generated once and kept in --state-dir")
	f.StringVar(&c.NodeName, "node-name", "", "node service: name of this node (in Kubernetes: the node's), part of a generated iSCSI name (default: the host name)")
	f.StringVar(&c.Attach, "attach", attachKernel, "node service: how to attach LUNs: kernel (the worker's open-iscsi and dm-multipath), userspace, or auto: kernel if supported, otherwise userspace")
	f.StringVar(&c.HostProc, "host-proc", "/proc/1", "node service, --attach kernel and auto: proc folder of the worker's first process; tools run in its namespaces")
	f.StringVar(&c.HolderAgent, "holder-agent", "", "node service: socket of the holder-agent that starts the processes of userspace attachments; empty: this process starts them")
	f.DurationVar(&c.IODeadline, "io-deadline", 30*time.Second, "node service: how long I/O waits without a working path before it fails")
	f.DurationVar(&c.NoLUNAfter, "no-lun-after", 5*time.Second, "node service: how long the target must report that the LUN is not mapped to this node (it was fenced) before I/O fails without waiting for --io-deadline")
	f.Int64Var(&c.MaxVolumes, "max-volumes", 128, "node service: maximum number of LUNs published to this node (a striped volume has several), limited by what the node can hold; 0: that limit")
	f.StringVar(&c.EnrollEndpoint, "enroll-endpoint", "", "node service: host:port of the operator's endpoint for CHAP credentials and reports of replayed logs; empty: credentials come only with the calls")
	f.StringVar(&c.EnrollCA, "enroll-ca", "", "with --enroll-endpoint: PEM certificates of the trusted authorities; the file may be created later")
	f.StringVar(&c.EnrollToken, "enroll-token", "", "with --enroll-endpoint: file with this pod's service account token for the audience gemel.storage/enroll")
	f.StringVar(&c.Registry, "kubelet-registry", "", "node service: the kubelet's plugins_registry folder, to register the plugin; empty: do not register")
	f.StringVar(&c.KubeletEndpoint, "kubelet-endpoint", "", "with --kubelet-registry: path of the socket as the kubelet sees it (default: that of --endpoint)")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "host:port of /metrics, /healthz and /readyz; empty: none")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	cmd.AddCommand(agentCmd(), holderCmd(), cleanCmd())
	return cmd
}

// agentCmd starts holders for a plugin in another pod.
func agentCmd() *cobra.Command {
	var a userspace.Agent
	var level, format string
	cmd := &cobra.Command{
		Use: "holder-agent", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Short: "Start the processes of userspace attachments for a node plugin in another pod",
		Long: `holder-agent is the parent of the processes of userspace attachments. In a cluster it runs in a separate pod, so that the node
plugin can be restarted and replaced while volumes are in use. When it ends, the volumes of its worker fail.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := cli.Logger(os.Stderr, level, format)
			if err != nil {
				return err
			}
			a.Log, a.Command = log, []string{"/proc/self/exe", holderCommand}
			return a.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&a.Socket, "socket", "", "Unix socket to serve on: the node plugin's --holder-agent")
	f.StringVar(&a.Dir, "dir", "", `folder of the attachments: "attach" below the node plugin's --state-dir`)
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	return cmd
}

// holderCmd is started by the attacher only.
func holderCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: holderCommand, Hidden: true, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Short: "serve one attachment (started by the plugin)",
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return fmt.Errorf("%s is started by the plugin, and cannot be started manually", holderCommand)
			}
			return holder.Run(dir, os.Stdin, slog.New(slog.NewTextHandler(&holder.Log{File: os.Stderr}, nil)))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the attachment's folder")
	return cmd
}
