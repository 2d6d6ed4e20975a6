package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// Control connects to the control API of one node of a pair; close ends the connection.
type Control func(ctx context.Context, p *v1alpha1.TargetPair, node string) (c targetv1.TargetServiceClient, close func(), err error)

// forwarder connects to targets through the API server, as `kubectl port-forward` does, with the
// certificate of the operator: a user who may read that Secret and forward ports is an
// administrator of the storage.
type forwarder struct {
	cfg       *rest.Config
	c         client.Client
	namespace string // of the operator
}

func (f *forwarder) connect(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, func(), error) {
	var s corev1.Secret
	key := client.ObjectKey{Namespace: f.namespace, Name: pairconn.SecretName(p.Spec.Cluster)}
	if err := f.c.Get(ctx, key, &s); err != nil {
		return nil, nil, fmt.Errorf("read the client certificate for the targets of cluster %s from Secret %s: %w", p.Spec.Cluster, key, err)
	}
	t, err := pairconn.TLS(&s, p)
	if err != nil {
		return nil, nil, err
	}
	port, stop, err := f.forward(ctx, pair.PodName(p.Name, node))
	if err != nil {
		return nil, nil, err
	}
	c, err := pairclient.New(pairclient.Config{Endpoints: []string{fmt.Sprintf("127.0.0.1:%d", port)}, TLS: t, Patience: callPatience})
	if err != nil {
		stop()
		return nil, nil, err
	}
	return c, func() { _ = c.Close(); stop() }, nil
}

// forward opens a local port to the control port of a pod.
func (f *forwarder) forward(ctx context.Context, pod string) (port uint16, stop func(), err error) {
	k, err := kubernetes.NewForConfig(f.cfg)
	if err != nil {
		return 0, nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(f.cfg)
	if err != nil {
		return 0, nil, err
	}
	url := k.CoreV1().RESTClient().Post().Resource("pods").Namespace(f.namespace).Name(pod).SubResource("portforward").URL()
	end, ready := make(chan struct{}), make(chan struct{})
	w, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		[]string{fmt.Sprintf("0:%d", pairconn.ControlPort)}, end, ready, io.Discard, io.Discard)
	if err != nil {
		return 0, nil, err
	}
	done := make(chan error, 1)
	go func() { done <- w.ForwardPorts() }()
	stop = func() { close(end); <-done }
	select {
	case err := <-done:
		return 0, nil, fmt.Errorf("pod %s/%s: %w", f.namespace, pod, errors.Join(err, errNoPod))
	case <-ctx.Done():
		stop()
		return 0, nil, ctx.Err()
	case <-ready:
	}
	ports, err := w.GetPorts()
	if err != nil || len(ports) != 1 {
		stop()
		return 0, nil, fmt.Errorf("pod %s/%s: no local port: %w", f.namespace, pod, err)
	}
	return ports[0].Local, stop, nil
}

var errNoPod = errors.New("the target is not running: see `kubectl get pods`")

// firstAnswer calls the first node of a pair that answers.
func firstAnswer[R any](ctx context.Context, control Control, p *v1alpha1.TargetPair, call func(targetv1.TargetServiceClient) (R, error)) (none R, err error) {
	n := &nodes{control: control, pair: p}
	defer n.close()
	var errs []error
	for _, node := range pair.Nodes {
		c, err := n.get(ctx, node)
		if err == nil {
			var r R
			if r, err = call(c); err == nil {
				return r, nil
			}
			if code := status.Code(err); code == codes.FailedPrecondition || code == codes.InvalidArgument || code == codes.NotFound {
				return none, fmt.Errorf("node %s: %s", node, status.Convert(err).Message())
			}
		}
		errs = append(errs, fmt.Errorf("node %s: %w", node, err))
	}
	return none, errors.Join(errs...)
}
