package pair

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/pki"
)

// keyCA is the authority's certificate in a secret beside those of its kind.
const keyCA = "ca.crt"

// certificates sees to the cluster's authority, the operator's own certificate and those of both nodes. They are made anew
// when two thirds of their life are over; targets read them without a restart.
func (r *Reconciler) certificates(ctx context.Context, p *v1alpha1.TargetPair) error {
	a, root, err := r.authority(ctx, p.Spec.Cluster)
	if err != nil {
		return err
	}
	if err := r.issue(ctx, a, root, ControlSecret(p.Spec.Cluster), pki.ControlURI(p.Spec.Cluster), nil); err != nil {
		return err
	}
	for _, n := range p.Spec.Nodes {
		if err := r.issue(ctx, a, root, NodeName(p.Name, n.Name), pki.TargetURI(p.Spec.Cluster, p.Name, n.Name), p); err != nil {
			return err
		}
	}
	return nil
}

// authority is made once for a cluster. Secrets are read live: a second authority, made from an old picture, would cut the
// nodes of a pair off from each other at their next handshake.
func (r *Reconciler) authority(ctx context.Context, cluster string) (*pki.Authority, []byte, error) {
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.Namespace, Name: AuthoritySecret(cluster)}
	err := r.Live.Get(ctx, key, s)
	if apierrors.IsNotFound(err) {
		_, pair, nerr := pki.New("gemel "+cluster, pki.AuthorityLife)
		if nerr != nil {
			return nil, nil, nerr
		}
		s = secret(key, cluster, pair, pair.Cert)
		if err = r.Create(ctx, s); apierrors.IsAlreadyExists(err) {
			err = r.Live.Get(ctx, key, s) // somebody else was first: theirs counts
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("authority of cluster %s: %w", cluster, err)
	}
	a, err := pki.Load(pki.Pair{Cert: s.Data[corev1.TLSCertKey], Key: s.Data[corev1.TLSPrivateKeyKey]})
	if err != nil {
		return nil, nil, waiting(v1alpha1.ReasonInvalid, "Secret %s/%s: %v: restore it; living connections go on, new ones fail", key.Namespace, key.Name, err)
	}
	return a, s.Data[corev1.TLSCertKey], nil
}

// issue keeps a certificate in a secret; of a node of a pair, or of the operator itself.
func (r *Reconciler) issue(ctx context.Context, a *pki.Authority, root []byte, name, uri string, p *v1alpha1.TargetPair) error {
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.Namespace, Name: name}
	err := r.Live.Get(ctx, key, s)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && !a.Due(s.Data[corev1.TLSCertKey], uri, r.now()) {
		return nil
	}
	pair, ierr := a.IssueAt(uri, r.now(), pki.LeafLife)
	if ierr != nil {
		return ierr
	}
	cluster := ""
	if p != nil {
		cluster = p.Spec.Cluster
	}
	fresh := secret(key, cluster, pair, root)
	if p != nil {
		fresh.Labels[v1alpha1.LabelPair] = p.Name
	}
	if apierrors.IsNotFound(err) {
		err = r.Create(ctx, fresh)
	} else {
		fresh.ResourceVersion = s.ResourceVersion
		err = r.Update(ctx, fresh)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return errors.Join(nil, waiting(v1alpha1.ReasonProgressing, "certificate %s is being made by another operator", name))
	}
	return err
}

func secret(key client.ObjectKey, cluster string, p pki.Pair, root []byte) *corev1.Secret {
	l := map[string]string{"app.kubernetes.io/name": "gemel", "app.kubernetes.io/managed-by": v1alpha1.OperatorManager}
	if cluster != "" {
		l[v1alpha1.LabelCluster] = cluster
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: l}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: p.Cert, corev1.TLSPrivateKeyKey: p.Key, keyCA: root}}
}
