package lease

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrRef is wrapped by ParseRef.
var ErrRef = errors.New(`it must be "NAMESPACE/NAME", with Kubernetes names: lower-case letters, digits and dashes`)

var (
	namespaceRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	nameRE      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// ParseRef reads "namespace/name".
func ParseRef(s string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || !namespaceRE.MatchString(namespace) || !nameRE.MatchString(name) || len(name) > 253 {
		return "", "", fmt.Errorf("%q: %w", s, ErrRef)
	}
	return namespace, name, nil
}

// Load is how to reach the API server: the file, or what a pod is given. inside reports the latter.
func Load(kubeconfig string) (cfg *rest.Config, inside bool, err error) {
	if kubeconfig != "" {
		cfg, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
		return cfg, false, err
	}
	cfg, err = rest.InClusterConfig()
	if err != nil {
		return nil, false, fmt.Errorf("this process does not run in a pod with a service account (%w): set a kubeconfig file", err)
	}
	return cfg, true, nil
}
