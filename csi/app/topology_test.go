package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// What trying again does not change must not keep a worker from registering; while the API server
// cannot be reached, trying again is what helps.
func TestTopologyOfAWorker(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for name, c := range map[string]struct {
		err    error
		want   map[string]string
		fails  bool
		logged string
	}{
		"labels":    {nil, map[string]string{corev1.LabelTopologyZone: "z", "rack": "7"}, false, ""},
		"not found": {apierrors.NewNotFound(nodes, "w1"), nil, false, "without zone and region"},
		"forbidden": {apierrors.NewForbidden(nodes, "w1", errors.New("no rights")), nil, false, "no rights"},
		"no answer": {errors.New("connection refused"), nil, true, ""},
	} {
		k := interceptor.NewClient(fake.NewClientBuilder().WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{corev1.LabelTopologyZone: "z", "rack": "7"}}}).Build(),
			interceptor.Funcs{Get: func(ctx context.Context, k client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, limited := ctx.Deadline(); !limited {
					t.Error("without a limit")
				}
				if c.err != nil {
					return c.err
				}
				return k.Get(ctx, key, o, opts...)
			}})
		var log bytes.Buffer
		f := &config{NodeName: "w1", TopologyKeys: []string{"rack"}}
		got, err := f.topology(k, slog.New(slog.NewTextHandler(&log, nil)))(t.Context())
		if !maps.Equal(got, c.want) || (err != nil) != c.fails || (log.Len() == 0) != (c.logged == "") || !strings.Contains(log.String(), c.logged) {
			t.Errorf("%s: %v, %v, %s", name, got, err, &log)
		}
	}
	if (&config{}).topology(nil, nil) != nil {
		t.Error("labels are read without Kubernetes")
	}
}
