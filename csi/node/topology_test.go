package node

import (
	"context"
	"errors"
	"maps"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/identity"
)

// The driver's own segment is there whatever the labels of the worker are.
func TestNodeInfoHasTheSegmentsOfTheWorker(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	var labels map[string]string
	var fails error
	read := func(context.Context) (map[string]string, error) { return labels, fails }
	for name, c := range map[string]struct {
		read   func(context.Context) (map[string]string, error)
		labels map[string]string
		want   map[string]string
	}{
		"without Kubernetes": {nil, nil, map[string]string{"csi.gemel.storage/reach": "all"}},
		"no labels":          {read, nil, map[string]string{"csi.gemel.storage/reach": "all"}},
		"a zone":             {read, map[string]string{zone: "z"}, map[string]string{"csi.gemel.storage/reach": "all", zone: "z"}},
		"the driver's stays": {read, map[string]string{"csi.gemel.storage/reach": "none"}, map[string]string{"csi.gemel.storage/reach": "all"}},
	} {
		s, err := New(Config{IQN: "iqn.x", StateDir: t.TempDir(), Attacher: fixed{}, Topology: c.read})
		if err != nil {
			t.Fatal(err)
		}
		labels = c.labels
		r, err := s.NodeGetInfo(t.Context(), nil)
		if err != nil || r.NodeId != "iqn.x" || !maps.Equal(r.AccessibleTopology.Segments, c.want) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
		if c.read == nil {
			continue
		}
		fails = errors.New("injected by the test")
		if _, err := s.NodeGetInfo(t.Context(), nil); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		fails = nil
	}
	if len(identity.Topology) != 1 {
		t.Error("the segment that all workers share was changed")
	}
}
