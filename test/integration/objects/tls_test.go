package objects

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// The operator reaches a pair with the certificate of a Secret, and does not accept the certificate
// of another pair.
func TestOperatorReachesAPairByItsCertificate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	hosts := [2]string{"127.0.0.1", "127.0.0.2"}
	flags, creds, err := harness.PKI(filepath.Join(dir, "pki"))
	ok(err)
	n := &harness.Network{Credentials: creds}
	control := 0
	for _, list := range []*[2]string{&n.ISCSI, &n.Metrics, &n.Control} {
		control, err = freeport.On(hosts[:]...)
		ok(err)
		for i, h := range hosts {
			list[i] = fmt.Sprintf("%s:%d", h, control)
		}
	}
	n.Link, err = freeport.Addr(hosts[0])
	ok(err)
	bin, err := harness.Build(ctx, dir, "./cmd/gemel-target")
	ok(err)
	p, err := harness.New(harness.Options{Dir: dir, Binary: bin, Net: n, PerNode: flags})
	ok(err)
	defer func() { _ = p.Close() }()
	ok(p.Start(ctx))

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "gemel-system", Name: pairconn.SecretName(harness.Cluster)}, Data: map[string][]byte{}}
	for k, f := range map[string]string{"tls.crt": "control.pem", "tls.key": "control.key", "ca.crt": "ca.pem"} {
		secret.Data[k], err = os.ReadFile(filepath.Join(dir, "pki", f))
		ok(err)
	}
	o := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: harness.PairName}, Spec: v1alpha1.TargetPairSpec{Cluster: harness.Cluster,
		Nodes: []v1alpha1.PairNode{{Name: "a", Address: hosts[0]}, {Name: "b", Address: hosts[1]}}}}
	other := o.DeepCopy()
	other.Name = "p1"
	d := &pairconn.Directory{Reader: fake.NewClientBuilder().WithScheme(operator.Scheme()).WithObjects(secret, o, other).Build(), Namespace: "gemel-system", Port: control}
	defer func() { _ = d.Close() }()

	c, err := d.Client(ctx, "p0")
	ok(err)
	s, err := c.Serving(ctx)
	ok(err)
	if s.Pair != harness.PairName {
		t.Errorf("%+v", s)
	}
	// These addresses under the name of another pair: a certificate of p0 is not accepted for p1.
	if c, err = d.Client(ctx, "p1"); err == nil {
		_, err = c.GetLUN(ctx, &targetv1.GetLUNRequest{Name: "x"})
	}
	if err == nil || !strings.Contains(err.Error(), "gemel://demo/p1/target") {
		t.Errorf("another pair's certificate: %v", err)
	}
}
