package pair

import (
	"bytes"
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/pki"
)

// ensureCertificates issues the operator's certificate and those of both nodes, and renews them
// after two thirds of their lifetime; targets reload them without a restart.
func (r *Reconciler) ensureCertificates(ctx context.Context, p *v1alpha1.TargetPair) error {
	t, err := r.authority(ctx, p.Spec.Cluster)
	if err != nil {
		return err
	}
	if err := r.ensureCertificate(ctx, t, ControlSecret(p.Spec.Cluster), pki.ControlURI(p.Spec.Cluster), p.Spec.Cluster, ""); err != nil {
		return err
	}
	for _, n := range p.Spec.Nodes {
		if err := r.ensureCertificate(ctx, t, NodeName(p.Name, n.Name), pki.TargetURI(p.Spec.Cluster, p.Name, n.Name), p.Spec.Cluster, p.Name); err != nil {
			return err
		}
	}
	return nil
}

// ensureCertificate keeps a certificate in a Secret: of a node of a pair, or of the operator if
// pair is empty. It reads from the cache: a write based on a stale cache fails with a conflict.
func (r *Reconciler) ensureCertificate(ctx context.Context, t *trust, name, uri, cluster, pair string) error {
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.Namespace, Name: name}
	err := r.Get(ctx, key, s)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	now := pki.Pair{Cert: s.Data[corev1.TLSCertKey], Key: s.Data[corev1.TLSPrivateKeyKey]}
	due := err != nil || t.signer.Due(now.Cert, uri, r.now())
	if !due && bytes.Equal(s.Data[pairconn.KeyCA], t.bundle) && s.Labels[v1alpha1.LabelCluster] == cluster {
		return nil
	}
	if due {
		var ierr error
		if now, ierr = t.signer.IssueAt(uri, r.now(), pki.LeafValidity); ierr != nil {
			return ierr
		}
	}
	fresh := secret(key, cluster, now, t.bundle)
	if pair != "" {
		fresh.Labels[v1alpha1.LabelPair] = pair
	}
	if apierrors.IsNotFound(err) {
		err = r.Create(ctx, fresh)
	} else {
		fresh.ResourceVersion = s.ResourceVersion
		err = r.Update(ctx, fresh)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return waiting(v1alpha1.ReasonProgressing, "another operator is creating the certificate %s", name)
	}
	return err
}

func secretLabels(cluster string) map[string]string {
	l := maps.Clone(pairconn.SecretLabels)
	l[v1alpha1.LabelCluster] = cluster
	return l
}

func secret(key client.ObjectKey, cluster string, p pki.Pair, bundle []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: secretLabels(cluster)}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: p.Cert, corev1.TLSPrivateKeyKey: p.Key, pairconn.KeyCA: bundle}}
}
