// Package kubectlgemel is the kubectl plugin: it shows the state of the objects, and does what only
// an administrator may decide: recreate objects from the disks, promote a node, scrub a pair, move
// LUNs. For app teams it diagnoses a claim, and restores a group snapshot.
package kubectlgemel

import (
	"fmt"
	"time"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Version of this build, set by the linker.
var Version = "dev"

type flags struct{ kubeconfig, context, namespace, system string }

// Command is the root command.
func Command() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{Use: "kubectl-gemel", Short: "Show the health of Gemel and diagnose a claim", Version: Version,
		Long: `kubectl gemel shows the state of Gemel from its objects and those of Kubernetes. Only end-quarantine, group restore, import --apply, pair
promote --accept-loss, scrub and transfer change anything.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true}
	p := cmd.PersistentFlags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "path to the kubeconfig file (default: as for kubectl)")
	p.StringVar(&f.context, "context", "", "name of the kubeconfig context")
	p.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the claim (default: that of the context)")
	p.StringVar(&f.system, "system-namespace", "gemel-system", "namespace of the operator")
	cmd.AddCommand(f.doctorCommand(), f.endQuarantineCommand(), f.groupCommand(), f.importCommand(), f.pairCommand(), f.scrubCommand(), f.tieringCommand(), f.topCommand(), f.transferCommand(),
		&cobra.Command{Use: "status", Short: "Show clusters, pairs and workers, with problems and remedies", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				c, _, err := f.client()
				if err != nil {
					return err
				}
				return Status(cmd.Context(), c, cmd.OutOrStdout())
			}},
		&cobra.Command{Use: "why CLAIM", Short: "Diagnose a PersistentVolumeClaim, from the claim to its disks and workers", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				c, ns, err := f.client()
				if err != nil {
					return err
				}
				return Why(cmd.Context(), c, ns, args[0], cmd.OutOrStdout())
			}})
	return cmd
}

func (f *flags) importCommand() *cobra.Command {
	i := &Importer{}
	cmd := &cobra.Command{Use: "import", Short: "Recreate lost objects from the disks; without --apply only show them", Args: cobra.NoArgs,
		Long: `Import recreates StorageClusters, TargetPairs, LogicalUnits and LogicalUnitSnapshots that were lost (deleted by force, with their
CRDs, or with etcd): pairs from their claims, Services and StatefulSets, LUNs and snapshots from the disks. Existing objects are
not changed, and nothing is destroyed, so it can be repeated. Running targets continue to serve.

It connects to the targets through the API server, and needs permission to read the Secret gemel-CLUSTER-control and to forward
ports of pods.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			control, c, err := f.control()
			if err != nil {
				return err
			}
			i.Client, i.Control, i.Namespace, i.Out = c, control, f.system, cmd.OutOrStdout()
			return i.Run(cmd.Context())
		}}
	cmd.Flags().BoolVar(&i.Apply, "apply", false, "create the objects")
	cmd.Flags().DurationVar(&i.Patience, "timeout", 10*time.Minute, "how long to wait for a recreated pair to serve")
	return cmd
}

func (f *flags) pairCommand() *cobra.Command {
	m := &Promotion{}
	promote := &cobra.Command{Use: "promote PAIR NODE", Short: "Make a node the only member of its pair although the record names another node or none", Args: cobra.ExactArgs(2),
		Long: `Use promote for a pair that no longer serves because the node that the record names is permanently lost, or because the record is
lost or older than the disks (a restored etcd). NODE, a or b, becomes the only member; the other node is copied to when it is back.

Writes that only the other node has are lost. Every LUN answers MEDIUM ERROR to its hosts until it is attached again, so that
no host continues with data that is older than the writes acknowledged to it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			control, c, err := f.control()
			if err != nil {
				return err
			}
			m.Client, m.Control, m.Namespace, m.Out = c, control, f.system, cmd.OutOrStdout()
			return m.Run(cmd.Context(), args[0], args[1])
		}}
	promote.Flags().BoolVar(&m.AcceptLoss, "accept-loss", false, "accept the loss of writes that only the other node has")
	promote.Flags().BoolVar(&m.OtherStopped, "other-stopped", false, "confirm that the other node, which does not answer, is stopped")
	cmd := &cobra.Command{Use: "pair", Short: "Commands for a pair that only an administrator may run", Args: cobra.NoArgs}
	cmd.AddCommand(promote)
	return cmd
}

// control connects to targets through the API server.
func (f *flags) control() (Control, client.Client, error) {
	cfg, _, err := f.config()
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: Scheme()})
	if err != nil {
		return nil, nil, err
	}
	w := &forwarder{cfg: cfg, c: c, namespace: f.system}
	return w.connect, c, nil
}

// config of the cluster, and the namespace of claims.
func (f *flags) config() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	k := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
	cfg, err := k.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	if f.namespace != "" {
		return cfg, f.namespace, nil
	}
	ns, _, err := k.Namespace()
	return cfg, ns, err
}

func (f *flags) client() (client.Client, string, error) {
	cfg, ns, err := f.config()
	if err != nil {
		return nil, "", err
	}
	c, err := client.New(cfg, client.Options{Scheme: Scheme()})
	return c, ns, err
}

// Scheme has every kind that the plugin reads or creates.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme, snapshotv1.AddToScheme,
		groupsnapshotv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // compiled in
		}
	}
	return s
}
