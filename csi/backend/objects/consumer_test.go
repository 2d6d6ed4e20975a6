package objects

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// requestOf a claim, with a preferred segment, as the provisioner makes it for each binding mode.
func requestOf(claim string) backend.CreateVolume {
	return backend.CreateVolume{ID: "lun-1", Name: "pvc-1", Cluster: "main", Size: 1 << 20, Preferred: map[string]string{corev1.LabelTopologyZone: "z1"},
		Labels: map[string]string{v1alpha1.DiskLabelPVC: claim, v1alpha1.DiskLabelNamespace: "team", v1alpha1.DiskLabelFSType: "xfs", v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle}}
}

// api is an API server with some claims; get may be nil.
func api(t *testing.T, get func(context.Context) error, claims ...client.Object) client.WithWatch {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s), storagev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(claims...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*corev1.PersistentVolumeClaim); ok && get != nil {
				if err := get(ctx); err != nil {
					return err
				}
			}
			return c.Get(ctx, key, o, opts...)
		}}).Build()
}

func claim(name, worker string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	if worker != "" {
		c.Annotations = map[string]string{annotationSelectedNode: worker}
	}
	return c
}

func TestConsumerIsTheSelectedNode(t *testing.T) {
	refused := func(context.Context) error { return errors.New("injected by the test") }
	bare := requestOf("waits")
	bare.Preferred = nil
	unnamed := requestOf("waits")
	delete(unnamed.Labels, v1alpha1.DiskLabelPVC)
	for name, c := range map[string]struct {
		req    backend.CreateVolume
		get    func(context.Context) error
		worker string
		zone   string
		logged string
	}{
		"first consumer":      {requestOf("waits"), nil, "w7", "z1", ""},
		"no segment":          {bare, nil, "w7", "", ""},
		"immediate binding":   {requestOf("immediate"), nil, "", "", ""},
		"no claim's name":     {unnamed, refused, "", "", ""},
		"claim is gone":       {requestOf("gone"), nil, "", "", "not found"},
		"claim is not read":   {requestOf("waits"), refused, "", "", "injected by the test"},
		"no name of a worker": {requestOf("odd"), nil, "", "", "is not the name of a node"},
	} {
		var log bytes.Buffer
		b := New(api(t, c.get, claim("waits", "w7"), claim("immediate", ""), claim("odd", "W 7")))
		b.Log = slog.New(slog.NewTextHandler(&log, nil))
		asked, err := b.claim(t.Context(), c.req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := b.consumer(c.req, asked)
		if (got != nil) != (c.worker != "") || got != nil && (got.Worker != c.worker || string(got.Topology[corev1.LabelTopologyZone]) != c.zone) {
			t.Errorf("%s: %+v", name, got)
		}
		if (c.logged == "") != (log.Len() == 0) || !strings.Contains(log.String(), c.logged) {
			t.Errorf("%s: %s", name, &log)
		}
		silent := New(b.c)
		if asked, err := silent.claim(t.Context(), c.req); err != nil || (silent.consumer(c.req, asked) == nil) != (got == nil) {
			t.Errorf("%s: another answer without a log: %v", name, err)
		}
	}
}

// An API server that does not answer delays a volume for seconds only.
func TestClaimIsReadWithinALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(api(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, claim("waits", "w7")))
		start := time.Now()
		if got, err := b.claim(t.Context(), requestOf("waits")); got != nil || err != nil || time.Since(start) != readLimit {
			t.Errorf("%+v, %v after %v", got, err, time.Since(start))
		}
		restricted := requestOf("waits")
		restricted.Requisite = []map[string]string{{corev1.LabelTopologyZone: "z1"}}
		start = time.Now()
		if got, err := b.claim(t.Context(), restricted); got != nil || !errors.Is(err, backend.ErrTimeout) || time.Since(start) != readLimit {
			t.Errorf("%+v, %v after %v", got, err, time.Since(start))
		}
	})
}

// A repeated request finds its object, also when the pod was scheduled to another worker meanwhile;
// the consumer stays.
func TestRepeatedRequestKeepsTheConsumer(t *testing.T) {
	c := api(t, nil, claim("waits", "w7"))
	b := New(c)
	// Nobody is there who creates the LUN.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.CreateVolume(ctx, requestOf("waits")); !errors.Is(err, backend.ErrTimeout) {
		t.Fatal(err)
	}
	lu := &v1alpha1.LogicalUnit{}
	read := func() {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKey{Name: "lun-1"}, lu); err != nil || lu.Spec.Consumer == nil || lu.Spec.Consumer.Worker != "w7" || lu.Spec.Consumer.Topology[corev1.LabelTopologyZone] != "z1" {
			t.Fatalf("%+v, %v", lu.Spec.Consumer, err)
		}
	}
	read()
	pvc := &corev1.PersistentVolumeClaim{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "waits"}, pvc); err != nil {
		t.Fatal(err)
	}
	pvc.Annotations[annotationSelectedNode] = "w8"
	if err := c.Update(t.Context(), pvc); err != nil {
		t.Fatal(err)
	}
	lu.Annotations, lu.Status.Size = map[string]string{v1alpha1.AnnotationMade: "true"}, &lu.Spec.Size
	if err := c.Update(t.Context(), lu); err != nil {
		t.Fatal(err)
	}
	again := requestOf("waits")
	again.Preferred = map[string]string{corev1.LabelTopologyZone: "z2"}
	if v, err := b.CreateVolume(t.Context(), again); err != nil || v.ID != "lun-1" {
		t.Fatalf("%+v, %v", v, err)
	}
	read()
}
