package operator

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/enroll"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	wire "github.com/gemel-storage/gemel/internal/enroll"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Enrolment of hosts. Without a namespace there is none, and hosts are let in by their names.
type Enrolment struct {
	Namespace string // of the credentials
	Listen    string // default: a free port of loopback
}

// secrets are cached as the operator does it: its own, of its namespace.
func secrets(namespace string) cache.Options {
	if namespace == "" {
		return cache.Options{}
	}
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Secret{}: {Namespaces: map[string]cache.Config{namespace: {LabelSelector: labels.SelectorFromSet(pairconn.SecretLabels)}}}}}
}

// enrolment adds the enrolment endpoint, on a port of its own, with its certificate and the keeper
// of credentials; nil without a namespace.
func (o *Operator) enrolment(m ctrl.Manager, e Enrolment) (*chap.Keeper, error) {
	namespace := e.Namespace
	if namespace == "" {
		return nil, nil
	}
	rec := m.GetEventRecorder(v1alpha1.OperatorManager)
	k := &chap.Keeper{Client: m.GetClient(), Live: m.GetAPIReader(), Namespace: namespace, Made: chap.RecordMade(rec)}
	l, err := net.Listen("tcp", cmp.Or(e.Listen, "127.0.0.1:0"))
	if err != nil {
		return nil, err
	}
	o.Enroll = l.Addr().String()
	s := &enroll.Server{Keeper: k, Reviewer: &enroll.Tokens{Client: m.GetClient(), Namespace: namespace}, Events: rec, Log: m.GetLogger(),
		Certificate: enroll.FromSecret(m.GetClient(), client.ObjectKey{Namespace: namespace, Name: pair.EnrollSecret()})}
	r := &pair.Reconciler{Client: m.GetClient(), Live: m.GetAPIReader(), Namespace: namespace, CHAP: k, Events: rec}
	return k, errors.Join(m.Add(manager.RunnableFunc(func(ctx context.Context) error { return s.Serve(ctx, l) })), m.Add(&enroll.Keep{Once: r.Enrollment}))
}

// AddCluster writes the StorageCluster of the pairs.
func AddCluster(ctx context.Context, c client.Client, chap string) error {
	o := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: Cluster}, Spec: v1alpha1.StorageClusterSpec{Pairs: 1, Security: v1alpha1.Security{CHAP: chap},
		Pools: []v1alpha1.Pool{{Name: "default", StorageClassName: "disks", Size: resource.MustParse("1Gi")}}}}
	return c.Create(ctx, o)
}

// Worker makes a Node with a pod of the node plugin, and writes what that pod has mounted to a
// folder: the token of its service account, for the operator, and the authorities that it trusts.
func Worker(ctx context.Context, cfg *rest.Config, namespace, node, dir string) (*wire.Client, error) {
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	exists := func(err error) error {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	_, nerr := k.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	_, serr := k.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: wire.ServiceAccount}}, metav1.CreateOptions{})
	if err := errors.Join(exists(nerr), exists(serr)); err != nil {
		return nil, err
	}
	token, err := Token(ctx, k, namespace, wire.ServiceAccount, node, wire.Audience)
	if err != nil {
		return nil, err
	}
	w := &wire.Client{CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token")}
	if err := os.WriteFile(w.TokenFile, []byte(token), 0o600); err != nil {
		return nil, err
	}
	return w, harness.Wait(ctx, "the authority of the enrolment endpoint is told", func() (bool, string) {
		m, err := k.CoreV1().ConfigMaps(namespace).Get(ctx, pair.EnrollConfig, metav1.GetOptions{})
		if err == nil {
			err = os.WriteFile(w.CAFile, []byte(m.Data[pairconn.KeyCA]), 0o600)
		}
		if err != nil {
			return false, err.Error()
		}
		return true, ""
	})
}

// Token of a service account, bound to a new pod on a node; bound to nothing if the node is empty.
func Token(ctx context.Context, k kubernetes.Interface, namespace, account, node, audience string) (string, error) {
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if node != "" {
		p, err := k.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"},
			Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "driver", Image: "gemel:1"}}}}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		req.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}
	}
	seconds := int64(time.Hour / time.Second)
	req.Spec.ExpirationSeconds = &seconds
	t, err := k.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, req, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return t.Status.Token, nil
}
