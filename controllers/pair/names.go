package pair

import (
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// Names of what belongs to a pair, all in the operator's namespace.

// Nodes of a pair.
var Nodes = []string{"a", "b"}

// Base is the name of what both nodes share: the Lease, the service account, the disruption budget, the policy.
func Base(pair string) string { return "gemel-" + pair }

// NodeName is the name of one node's Service, StatefulSet and certificate.
func NodeName(pair, node string) string { return Base(pair) + "-" + node }

// PodName of a node's pod.
func PodName(pair, node string) string { return NodeName(pair, node) + "-0" }

// ClaimName of a node's backing volume; disk counts those that it has had.
func ClaimName(pair, node string, disk int32) string {
	return NodeName(pair, node) + "-d" + strconv.Itoa(int(disk))
}

// AuthoritySecret holds a cluster's certificate authority, ControlSecret the certificate of who calls its targets.
func AuthoritySecret(cluster string) string { return fmt.Sprintf("gemel-%s-ca", cluster) }

// ControlSecret holds the certificate of who may call the targets' control API.
func ControlSecret(cluster string) string { return pairconn.SecretName(cluster) }

// NewLease is a pair's record before anything is written to it.
func NewLease(p *v1alpha1.TargetPair, namespace string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: Base(p.Name), Namespace: namespace, Labels: labels(p, "")}}
}

// Other node of a pair.
func Other(node string) string {
	if node == Nodes[0] {
		return Nodes[1]
	}
	return Nodes[0]
}

// labels of everything that belongs to a pair, or to one node of it.
func labels(p *v1alpha1.TargetPair, node string) map[string]string {
	l := map[string]string{"app.kubernetes.io/name": "gemel", "app.kubernetes.io/component": "target",
		"app.kubernetes.io/managed-by": v1alpha1.OperatorManager,
		v1alpha1.LabelCluster:          p.Spec.Cluster, v1alpha1.LabelPair: p.Name}
	if node != "" {
		l[v1alpha1.LabelNode] = node
	}
	return l
}

func selector(p *v1alpha1.TargetPair, node string) map[string]string {
	l := map[string]string{v1alpha1.LabelPair: p.Name}
	if node != "" {
		l[v1alpha1.LabelNode] = node
	}
	return l
}
