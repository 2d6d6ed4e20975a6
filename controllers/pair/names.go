package pair

import (
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// Names of the objects of a pair, all in the operator's namespace.

// Nodes of a pair.
var Nodes = []string{"a", "b"}

// Base is the name of the objects that both nodes share: Lease, ServiceAccount,
// PodDisruptionBudget, NetworkPolicy.
func Base(pair string) string { return "gemel-" + pair }

// NodeName is the name of one node's Service, StatefulSet and certificate.
func NodeName(pair, node string) string { return Base(pair) + "-" + node }

// PodName of a node's pod.
func PodName(pair, node string) string { return NodeName(pair, node) + "-0" }

// ClaimName of a node's backing volume; disk counts the volumes that the node has had.
func ClaimName(pair, node string, disk int32) string {
	return NodeName(pair, node) + "-d" + strconv.Itoa(int(disk))
}

// AuthoritySecret holds a cluster's certificate authority.
func AuthoritySecret(cluster string) string { return fmt.Sprintf("gemel-%s-ca", cluster) }

// ControlSecret holds the client certificate for the control API of the cluster's targets.
func ControlSecret(cluster string) string { return pairconn.SecretName(cluster) }

// NewLease is a pair's record before the first write.
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
