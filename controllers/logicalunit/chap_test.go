package logicalunit

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
)

const chapHost = "iqn.2026-11.storage.gemel:node.a"

// Credentials are sent to the pair with the mapping and when they are replaced, and not otherwise;
// the status names them.
func TestCredentialsAreSentWithTheMapping(t *testing.T) {
	f := setup(t, hosts(strings.ToUpper(chapHost)))
	f.r.CHAP = &chap.Keeper{Client: f.c, Live: f.c, Namespace: "ns"}
	create := func(o client.Object) {
		t.Helper()
		if err := f.c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	create(&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
	lu, _, err := f.look()
	if err == nil || condition(lu, "Published") != "False NotEnrolled" || len(lu.Status.Hosts) != 0 || f.chap != nil {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
	create(&v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.HostSpec{IQN: chapHost}})
	lu, _, err = f.look()
	if err != nil || f.chap == nil || lu.Status.Hosts[0].CHAPUser != f.chap.User || f.chap.Secret == "" || f.chap.MutualSecret == "" {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
	first := f.chap
	if _, _, err = f.look(); err != nil || strings.Contains(strings.Join(f.calls, " "), "map") {
		t.Fatalf("%v, %v", f.calls, err)
	}
	if err := f.c.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: chap.SecretName("p", chapHost)}}); err != nil {
		t.Fatal(err)
	}
	f.fail["map "+chapHost] = codes.Unavailable
	if lu, _, err = f.look(); err == nil || lu.Status.Hosts[0].CHAPUser != first.User {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
	delete(f.fail, "map "+chapHost)
	lu, _, err = f.look()
	if err != nil || f.chap.User == first.User || lu.Status.Hosts[0].CHAPUser != f.chap.User || lu.Status.Hosts[0].Generation != 1 || condition(lu, "Published") != "True Ready" {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
}

// A LUN that was mapped by an earlier release stays mapped without credentials.
func TestMappingOfEarlierReleaseStaysWithoutCredentials(t *testing.T) {
	f := setup(t, hosts(chapHost))
	if _, _, err := f.look(); err != nil {
		t.Fatal(err)
	}
	f.r.CHAP = &chap.Keeper{Client: f.c, Live: f.c, Namespace: "ns"}
	if lu, _, err := f.look(); err != nil || condition(lu, "Published") != "True Ready" || strings.Contains(strings.Join(f.calls, " "), "map") {
		t.Fatalf("%v, %v", f.calls, err)
	}
}

// A Secret enqueues the LUNs of its pair and worker, a Host those that wait for it.
func TestSecretsAndHostsEnqueueTheirLUNs(t *testing.T) {
	f := setup(t, hosts(chapHost))
	f.r.CHAP = &chap.Keeper{Client: f.c, Live: f.c, Namespace: "ns"}
	lu, _, _ := f.look()
	secret := func(pair, iqn string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: chap.Labels(pair), Annotations: map[string]string{"gemel.storage/iqn": iqn}}}
	}
	if n := len(f.r.lunsOfSecret(t.Context(), secret(lu.Spec.Placement.Pair, chapHost))); n != 1 {
		t.Errorf("%d", n)
	}
	if n := len(f.r.lunsOfSecret(t.Context(), secret("other", chapHost))) + len(f.r.lunsOfSecret(t.Context(), secret("p", "iqn.x"))) + len(f.r.lunsOfSecret(t.Context(), &corev1.Secret{})); n != 0 {
		t.Errorf("%d", n)
	}
	if n := len(f.r.lunsOfHost(t.Context(), &v1alpha1.Host{Spec: v1alpha1.HostSpec{IQN: strings.ToUpper(chapHost)}})); n != 1 {
		t.Errorf("%d", n)
	}
}
