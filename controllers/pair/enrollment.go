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

// enrollDomain stands in for the cluster name in the certificate of the enrolment endpoint, which
// serves the workers of all clusters. It has a dot, which the name of a cluster cannot have.
const enrollDomain = "enroll.operator"

// EnrollSecret holds the certificate of the enrolment endpoint.
func EnrollSecret() string { return ControlSecret(enrollDomain) }

// EnrollConfig is the ConfigMap with the authorities that node plugins trust at enrolment.
const EnrollConfig = "gemel-enroll-ca"

// Enrollment reconciles the certificate of the enrolment endpoint and its authority, which is
// rotated like that of a cluster. The ConfigMap is updated before the certificate: a step of a
// rotation waits for both.
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
	return r.ensureCertificate(ctx, t, EnrollSecret(), pki.EnrollURI, enrollDomain, "")
}
