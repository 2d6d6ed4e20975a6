package node

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
)

// holding is an attacher with so many LUNs.
type holding struct {
	attach.Attacher
	volumes []string
	luns    int
	err     error
}

func (h holding) Attached() ([]string, error) { return h.volumes, nil }
func (h holding) LUNs() (int, error)          { return h.luns, h.err }

// Kubernetes counts volumes and a worker holds LUNs: volumes of one LUN leave the limit as it is, a
// striped one takes its further LUNs away, and the limit never becomes 0, which means none.
func TestLimitOfVolumesCountsLUNs(t *testing.T) {
	for name, c := range map[string]struct {
		most int64
		holding
		want int64
	}{
		"no limit":              {0, holding{volumes: []string{"v"}, luns: 4}, 0},
		"nothing attached":      {16, holding{}, 16},
		"volumes of one LUN":    {16, holding{volumes: []string{"v", "w"}, luns: 2}, 16},
		"one of four LUNs":      {16, holding{volumes: []string{"v", "w"}, luns: 5}, 13},
		"full":                  {8, holding{volumes: []string{"v", "w"}, luns: 8}, 2},
		"more than the new one": {4, holding{volumes: []string{"v"}, luns: 8}, 1},
	} {
		s, err := New(Config{IQN: "iqn.x", StateDir: t.TempDir(), Attacher: c.holding, MaxLUNs: c.most})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.NodeGetInfo(t.Context(), nil); err != nil || r.MaxVolumesPerNode != c.want {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	s, err := New(Config{IQN: "iqn.x", StateDir: t.TempDir(), Attacher: holding{err: errors.New("injected by the test")}, MaxLUNs: 16})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NodeGetInfo(t.Context(), nil); status.Code(err) != codes.Internal {
		t.Error(err)
	}
}
