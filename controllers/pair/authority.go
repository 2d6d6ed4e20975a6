package pair

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/pki"
)

// The Secret of an authority holds the certificate that signs (tls.crt, tls.key) and all trusted
// certificates (ca.crt). The authority is rotated in three steps (docs/decisions/0021), each an
// update that fails with a conflict if the Secret has changed since it was read:
//
//	announce  a next certificate exists; both are trusted, the current one signs
//	switch    the next certificate becomes the current one and signs; both are trusted
//	drop      the former certificate is no longer trusted
//
// A step begins only after every certificate of the cluster has matched the previous step for
// settleTime, because a kubelet updates a mounted Secret about a minute late. So the two ends of a
// handshake are at most one step apart and trust each other. Established connections are not
// affected.
const (
	keyNextCert = "next.crt"
	keyNextKey  = "next.key"

	// AnnotationRotate on the Secret of an authority, with any value, starts a rotation.
	AnnotationRotate = "gemel.storage/rotate"
	// annotationSettled is the time since which every certificate matches the current step.
	annotationSettled = "gemel.storage/settled"

	settleTime = 10 * time.Minute
)

// trust is what certificates are issued with.
type trust struct {
	signer *pki.Authority
	bundle []byte // all trusted certificates, PEM
}

// authority returns the authority of a cluster, which is created once. It is read without the
// cache: a second authority, created because of a stale cache, would make the next handshakes
// between the nodes of a pair fail. A lost authority is created again and trusts what the former
// one signed.
func (r *Reconciler) authority(ctx context.Context, cluster string) (*trust, error) {
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.Namespace, Name: AuthoritySecret(cluster)}
	err := r.Live.Get(ctx, key, s)
	if apierrors.IsNotFound(err) {
		if s, err = r.createAuthority(ctx, key, cluster); apierrors.IsAlreadyExists(err) {
			s = &corev1.Secret{}
			err = r.Live.Get(ctx, key, s) // another operator created it first
		}
	}
	if err != nil {
		return nil, fmt.Errorf("authority of cluster %s: %w", cluster, err)
	}
	if err := r.rotate(ctx, s, cluster); err != nil {
		return nil, err
	}
	a, err := signer(s)
	if err != nil {
		return nil, err
	}
	return &trust{a, s.Data[pairconn.KeyCA]}, nil
}

func signer(s *corev1.Secret) (*pki.Authority, error) {
	a, err := pki.Load(pki.Pair{Cert: s.Data[corev1.TLSCertKey], Key: s.Data[corev1.TLSPrivateKeyKey]})
	if err != nil {
		return nil, waiting(v1alpha1.ReasonInvalid, "Secret %s/%s: %v: restore the Secret; existing connections continue, new connections fail", s.Namespace, s.Name, err)
	}
	return a, nil
}

// createAuthority creates the authority; it also trusts a former one if the control certificate
// still has it.
func (r *Reconciler) createAuthority(ctx context.Context, key client.ObjectKey, cluster string) (*corev1.Secret, error) {
	_, pair, err := pki.NewAt("gemel "+cluster, r.now(), pki.AuthorityValidity)
	if err != nil {
		return nil, err
	}
	bundle := pair.Cert
	former := &corev1.Secret{}
	switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: ControlSecret(cluster)}, former); {
	case err == nil:
		bundle = join(pair.Cert, former.Data[pairconn.KeyCA])
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	s := secret(key, cluster, pair, bundle)
	return s, r.Create(ctx, s)
}

func join(certs ...[]byte) []byte { return bytes.Join(certs, nil) }

// rotate starts a rotation or takes its next step if it is due, and updates s.
func (r *Reconciler) rotate(ctx context.Context, s *corev1.Secret, cluster string) error {
	next := s.DeepCopy()
	_, announced := s.Data[keyNextCert]
	_, requested := s.Annotations[AnnotationRotate]
	switch {
	case !announced && bytes.Equal(s.Data[pairconn.KeyCA], s.Data[corev1.TLSCertKey]):
		a, err := signer(s)
		if err != nil || !requested && !a.Old(r.now()) {
			return err
		}
		_, pair, err := pki.NewAt("gemel "+cluster, r.now(), pki.AuthorityValidity)
		if err != nil {
			return err
		}
		next.Data[keyNextCert], next.Data[keyNextKey] = pair.Cert, pair.Key
		next.Data[pairconn.KeyCA] = join(s.Data[corev1.TLSCertKey], pair.Cert)
		delete(next.Annotations, AnnotationRotate)
	default:
		if done, err := r.allReissued(ctx, s, cluster); err != nil || !done {
			return err
		}
		if since, err := time.Parse(time.RFC3339, s.Annotations[annotationSettled]); err != nil {
			if next.Annotations == nil {
				next.Annotations = map[string]string{}
			}
			next.Annotations[annotationSettled] = r.now().Format(time.RFC3339)
			break
		} else if r.now().Before(since.Add(settleTime)) {
			return nil
		}
		delete(next.Annotations, annotationSettled)
		if announced {
			next.Data[corev1.TLSCertKey], next.Data[corev1.TLSPrivateKeyKey] = s.Data[keyNextCert], s.Data[keyNextKey]
			delete(next.Data, keyNextCert)
			delete(next.Data, keyNextKey)
		} else {
			next.Data[pairconn.KeyCA] = s.Data[corev1.TLSCertKey]
		}
	}
	if err := r.Update(ctx, next); apierrors.IsConflict(err) {
		return waiting(v1alpha1.ReasonProgressing, "another operator is changing the authority of cluster %s", cluster)
	} else if err != nil {
		return fmt.Errorf("authority of cluster %s: %w", cluster, err)
	}
	*s = *next
	return nil
}

// allReissued reports whether every certificate of the cluster is signed by the current authority
// and comes with all trusted certificates.
func (r *Reconciler) allReissued(ctx context.Context, s *corev1.Secret, cluster string) (bool, error) {
	a, err := signer(s)
	if err != nil {
		return false, err
	}
	l := &corev1.SecretList{}
	if err := r.Live.List(ctx, l, client.InNamespace(r.Namespace), client.MatchingLabels(pairconn.SecretLabels), client.MatchingLabels{v1alpha1.LabelCluster: cluster}); err != nil {
		return false, err
	}
	certificates := 0
	for i := range l.Items {
		x := &l.Items[i]
		if x.Type != corev1.SecretTypeTLS {
			continue // CHAP credentials, which no authority signs
		}
		certificates++
		if x.Name != s.Name && (!bytes.Equal(x.Data[pairconn.KeyCA], s.Data[pairconn.KeyCA]) || !a.Signed(x.Data[corev1.TLSCertKey])) {
			return false, nil
		}
	}
	return certificates > 1, nil
}
