// Package kubectlgemel is the kubectl plugin: it reads what the objects say and puts it in order. It changes nothing.
package kubectlgemel

import (
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Version of this build, set by the linker.
var Version = "dev"

type flags struct{ kubeconfig, context, namespace string }

// Command is the root command.
func Command() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{Use: "kubectl-gemel", Short: "How Gemel is, and why a claim does not work", Version: Version,
		Long: `kubectl gemel reads the objects of Gemel and of Kubernetes around them, and says what they mean. It changes nothing.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true}
	p := cmd.PersistentFlags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "file that says how to reach the cluster (default: as kubectl does)")
	p.StringVar(&f.context, "context", "", "context of that file")
	p.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the claim (default: the context's)")
	cmd.AddCommand(
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

func (f *flags) client() (client.Client, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	k := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
	cfg, err := k.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	ns := f.namespace
	if ns == "" {
		if ns, _, err = k.Namespace(); err != nil {
			return nil, "", err
		}
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme()})
	return c, ns, err
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // compiled in
		}
	}
	return s
}
