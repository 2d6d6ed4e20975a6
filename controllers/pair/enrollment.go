package pair

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/apply"
	"github.com/gemel-storage/gemel/internal/pki"
)

// enrollDomain takes the place of a cluster for the certificate of the enrolment endpoint, which serves the workers of all clusters. It
// has a dot, which no cluster's name has.
const enrollDomain = "enroll.operator"

// EnrollSecret holds the certificate of the enrolment endpoint.
func EnrollSecret() string { return ControlSecret(enrollDomain) }

// EnrollConfig is the ConfigMap from which node plugins have the authorities that they trust at enrolment.
const EnrollConfig = "gemel-enroll-ca"

// Enrollment sees to the certificate of the enrolment endpoint and to its authority, which is rotated like that of a cluster. What node plugins
// trust is told before the certificate changes: a step of a rotation waits for both.
func (r *Reconciler) Enrollment(ctx context.Context) error {
	t, err := r.authority(ctx, enrollDomain)
	if err != nil {
		return err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: EnrollConfig, Labels: secretLabels(enrollDomain)},
		Data: map[string]string{pairconn.KeyCA: string(t.bundle)}}
	u, err := apply.Typed(m, r.Scheme())
	if err != nil {
		return err
	}
	if err := apply.Objects(ctx, r.Client, v1alpha1.OperatorManager, u); err != nil {
		return err
	}
	return r.issue(ctx, t, EnrollSecret(), pki.EnrollURI, enrollDomain, "")
}
