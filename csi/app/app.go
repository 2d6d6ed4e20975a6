// Package app is the command line of gemel-csi: flags become services, then they serve.
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
		Long: `gemel-csi gives out the LUNs of a Gemel pair as CSI volumes: mounted (xfs, ext4) or raw.

The controller service writes LogicalUnits, which the operator carries out on the pairs of a StorageCluster (--backend objects:
within a cluster, or with --kubeconfig), or talks itself to the control API of both nodes of one pair (--backend direct).

A filesystem that many nodes read has its log replayed first, by the node service of one of them, which tells the pair (--pair-endpoint) or the operator
(--enroll-endpoint).

The node service attaches a LUN with the worker's own open-iscsi and dm-multipath (--attach kernel; docs/workers.md says what they need),
or by a process of its own (--attach userspace: iSCSI initiator, FUSE file, loop device; needs /dev/fuse and /dev/loop-control). With
--attach auto it is the kernel, and userspace where the worker's kernel has no iSCSI or no dm-multipath; a package or daemon that is missing is told
instead. Either goes on when the plugin is restarted. Both need root, mkfs.xfs, xfs_growfs, mkfs.ext4, e2fsck, resize2fs, dumpe2fs, blkid and mount.

SIGTERM lets calls under way finish and ends the plugin; what is attached and mounted stays.`,
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
			defer memlimit.Follow(cmd.Context(), log)() // holders are many in one cgroup, and do not
			return c.run(cmd.Context(), log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Endpoint, "endpoint", "", "Unix socket to serve CSI on: unix:///path")
	f.StringVar(&c.Mode, "mode", "all", "which services: controller, node or all")
	f.StringVar(&c.Backend, "backend", "", "controller service: objects (Kubernetes) or direct (one pair); default: direct with --pair-endpoint, objects without")
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "file that says how to reach the API server; default: the pod's service account")
	f.BoolVar(&c.NodeObject, "node-object", false, "node service: write the Host object of the Kubernetes node --node-name")
	f.StringArrayVar(&c.PairEndpoints, "pair-endpoint", nil, "host:port of the control API of a node of the pair (repeatable; name both)")
	f.StringVar(&c.TLSCert, "tls-cert", "", "PEM certificate for the control API; without certificates only loopback works")
	f.StringVar(&c.TLSKey, "tls-key", "", "PEM key of that certificate")
	f.StringVar(&c.TLSCA, "tls-ca", "", "PEM certificates of the authority that signed the nodes' certificates")
	f.StringVar(&c.Cluster, "cluster", "", "with TLS: the cluster that the nodes' certificates must name")
	f.StringVar(&c.Pair, "pair", "", "with TLS: the pair that the nodes' certificates must name")
	f.StringVar(&c.StateDir, "state-dir", "", "node service: folder for its records; must survive restarts")
	f.StringVar(&c.NodeIQN, "node-iqn", "", "node service: iSCSI name of this node; empty: made once and kept in --state-dir")
	f.StringVar(&c.NodeName, "node-name", "", "node service: name of this node (in Kubernetes: the node's), part of a generated iSCSI name (default: the host name)")
	f.StringVar(&c.Attach, "attach", attachKernel, "node service: how LUNs are attached: kernel (the worker's open-iscsi and dm-multipath), userspace, or auto: userspace if the kernel cannot")
	f.StringVar(&c.HostProc, "host-proc", "/proc/1", "node service, --attach kernel and auto: folder in proc of the worker's first process, whose namespaces its tools are run in")
	f.StringVar(&c.HolderAgent, "holder-agent", "", "node service: socket of a holder-agent that starts the processes behind userspace attachments; empty: this process does")
	f.DurationVar(&c.IODeadline, "io-deadline", 30*time.Second, "node service: how long I/O waits while no path serves before it fails")
	f.DurationVar(&c.NoLUNAfter, "no-lun-after", 5*time.Second, "node service: how long the target has to say that this node has no such LUN (it was fenced) before I/O fails instead of waiting for --io-deadline")
	f.Int64Var(&c.MaxVolumes, "max-volumes", 128, "node service: volumes that may be published to this node, at most what it can hold; 0: as many as that")
	f.StringVar(&c.EnrollEndpoint, "enroll-endpoint", "", "node service: host:port at which the operator gives this worker its CHAP credentials, and hears of logs that were replayed; empty: they come with the calls or not at all")
	f.StringVar(&c.EnrollCA, "enroll-ca", "", "with --enroll-endpoint: PEM certificates of the authorities that are trusted there; may come later")
	f.StringVar(&c.EnrollToken, "enroll-token", "", "with --enroll-endpoint: file of this pod's service account token for the audience gemel.storage/enroll")
	f.StringVar(&c.Registry, "kubelet-registry", "", "node service: the kubelet's plugins_registry folder, to make the plugin known there; empty: the plugin is not registered")
	f.StringVar(&c.KubeletEndpoint, "kubelet-endpoint", "", "with --kubelet-registry: path of the socket as the kubelet sees it (default: that of --endpoint)")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "host:port of /metrics, /healthz and /readyz; empty: none")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	cmd.AddCommand(agentCmd(), holderCmd(), cleanCmd())
	return cmd
}

// agentCmd runs what starts holders for a plugin in another pod.
func agentCmd() *cobra.Command {
	var a userspace.Agent
	var level, format string
	cmd := &cobra.Command{
		Use: "holder-agent", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Short: "Start the processes behind userspace attachments for a node plugin in another pod",
		Long: `holder-agent is the parent of the processes that hold userspace attachments. In a cluster it has a pod of its own, so that
the node plugin may be restarted and replaced while volumes are in use. Ending it ends the volumes of its worker.`,
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
	f.StringVar(&a.Socket, "socket", "", "Unix socket to serve on, the node plugin's --holder-agent")
	f.StringVar(&a.Dir, "dir", "", `folder of the attachments: "attach" below the node plugin's --state-dir`)
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	return cmd
}

// holderCmd is started by the attacher, never by people.
func holderCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: holderCommand, Hidden: true, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Short: "serve one attachment (started by the plugin)",
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return fmt.Errorf("%s is started by the plugin, not by hand", holderCommand)
			}
			return holder.Run(dir, os.Stdin, slog.New(slog.NewTextHandler(&holder.Log{File: os.Stderr}, nil)))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the attachment's folder")
	return cmd
}
