// Package kubectlgemel is the kubectl plugin: it reads what the objects say and puts it in order, and does what only an
// administrator may decide: objects made again from the disks, a node promoted, the copies of a pair compared.
package kubectlgemel

import (
	"fmt"
	"time"

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
	cmd := &cobra.Command{Use: "kubectl-gemel", Short: "How Gemel is, and why a claim does not work", Version: Version,
		Long: `kubectl gemel reads the objects of Gemel and of Kubernetes around them, and says what they mean. Only import --apply,
pair promote --accept-loss and scrub --repair change anything.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true}
	p := cmd.PersistentFlags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "file that says how to reach the cluster (default: as kubectl does)")
	p.StringVar(&f.context, "context", "", "context of that file")
	p.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the claim (default: the context's)")
	p.StringVar(&f.system, "system-namespace", "gemel-system", "namespace of the operator")
	cmd.AddCommand(f.importCommand(), f.pairCommand(), f.scrubCommand(),
		&cobra.Command{Use: "status", Short: "Clusters, pairs and workers, with what is wrong and what to do", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				c, _, err := f.client()
				if err != nil {
					return err
				}
				return Status(cmd.Context(), c, cmd.OutOrStdout())
			}},
		&cobra.Command{Use: "why CLAIM", Short: "Follow a PersistentVolumeClaim down to its disks and name the first broken link", Args: cobra.ExactArgs(1),
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
	cmd := &cobra.Command{Use: "import", Short: "Make objects that were lost again, from the disks; without --apply say what it would do", Args: cobra.NoArgs,
		Long: `After StorageClusters, TargetPairs, LogicalUnits or LogicalUnitSnapshots were lost (deleted by force, with their definitions, or
with etcd), this makes them again: pairs from their claims, Services and StatefulSets, LUNs and snapshots from the disks.
Objects that are there are left alone, and nothing is ever destroyed, so it may be repeated. Targets that still run go on.

It reaches the targets through the API server and needs to read the Secret gemel-CLUSTER-control and to forward ports of pods.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			control, c, err := f.control()
			if err != nil {
				return err
			}
			i.Client, i.Control, i.Namespace, i.Out = c, control, f.system, cmd.OutOrStdout()
			return i.Run(cmd.Context())
		}}
	cmd.Flags().BoolVar(&i.Apply, "apply", false, "make the objects")
	cmd.Flags().DurationVar(&i.Patience, "timeout", 10*time.Minute, "how long a pair that was made again may take until it serves")
	return cmd
}

func (f *flags) pairCommand() *cobra.Command {
	m := &Promotion{}
	promote := &cobra.Command{Use: "promote PAIR NODE", Short: "Make a node the only member although another one, or none, is on record", Args: cobra.ExactArgs(2),
		Long: `For a pair that no longer serves because the node on record is lost for good, or because the record itself is lost or older
than the disks (an etcd that was restored). NODE, a or b, becomes the only member; the other one gets a copy when it is back.

Writes that only the lost node has are given up. Every LUN answers MEDIUM ERROR to its hosts until it is attached again, so that
no host continues with data that is older than the writes acknowledged to it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			control, c, err := f.control()
			if err != nil {
				return err
			}
			m.Client, m.Control, m.Namespace, m.Out = c, control, f.system, cmd.OutOrStdout()
			return m.Run(cmd.Context(), args[0], args[1])
		}}
	promote.Flags().BoolVar(&m.AcceptLoss, "accept-loss", false, "writes that only the other node has are given up")
	promote.Flags().BoolVar(&m.OtherStopped, "other-stopped", false, "the other node does not answer, and you have made sure that it is stopped")
	cmd := &cobra.Command{Use: "pair", Short: "What only an administrator may decide about a pair", Args: cobra.NoArgs}
	cmd.AddCommand(promote)
	return cmd
}

// control reaches targets through the API server.
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

// Scheme knows every kind that the plugin reads or makes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // compiled in
		}
	}
	return s
}
