package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

func segments(kv ...string) *csi.Topology {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return &csi.Topology{Segments: m}
}

func TestFirstPreferredSegment(t *testing.T) {
	const zone, region, reach = "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "csi.gemel.storage/reach"
	thousand := []*csi.Topology{segments(reach, "all", zone, "z7")}
	many := segments()
	for i := range 1000 {
		thousand = append(thousand, segments(zone, fmt.Sprint("z", i)))
		many.Segments[fmt.Sprint("k", i)] = "v"
	}
	for name, c := range map[string]struct {
		req  *csi.TopologyRequirement
		want map[string]string
		says []string
	}{
		"none":              {nil, nil, nil},
		"requisite only":    {&csi.TopologyRequirement{Requisite: []*csi.Topology{segments(zone, "z1")}}, nil, nil},
		"the first":         {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments(reach, "all", zone, "z1", region, "r1"), segments(zone, "z2")}}, map[string]string{zone: "z1", region: "r1"}, nil},
		"the driver's key":  {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments(reach, "all"), segments(zone, "z2")}}, nil, nil},
		"empty":             {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments()}}, nil, nil},
		"nil":               {&csi.TopologyRequirement{Preferred: []*csi.Topology{nil}}, nil, nil},
		"keys of others":    {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments("example.com/rack", "r7")}}, map[string]string{"example.com/rack": "r7"}, nil},
		"empty value":       {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments(zone, "", region, "r")}}, map[string]string{region: "r"}, nil},
		"thousand segments": {&csi.TopologyRequirement{Preferred: thousand, Requisite: thousand}, map[string]string{zone: "z7"}, nil},
		"thousand keys": {&csi.TopologyRequirement{Preferred: []*csi.Topology{many}}, nil,
			[]string{"accessibility_requirements.preferred[0].segments", "1000 keys", "at most 32", "--topology-keys"}},
		"bad key":   {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments("a b", "v")}}, nil, []string{"preferred[0].segments", `"a b"`, "alphanumeric"}},
		"bad value": {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments(zone, strings.Repeat("z", 1000))}}, nil, []string{"preferred[0].segments", zone, "63"}},
	} {
		got, err := preferredSegment(c.req)
		if !maps.Equal(got, c.want) || (err != nil) != (c.says != nil) || err != nil && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) || len(err.Error()) > 600 {
				t.Errorf("%s: %v does not say %q, or too much", name, err, s)
			}
		}
	}
}

func TestRequisiteSegments(t *testing.T) {
	const zone, reach = "topology.kubernetes.io/zone", "csi.gemel.storage/reach"
	for name, c := range map[string]struct {
		req  *csi.TopologyRequirement
		want string
	}{
		"none":           {nil, "[]"},
		"preferred only": {&csi.TopologyRequirement{Preferred: []*csi.Topology{segments(zone, "a")}}, "[]"},
		"all":            {&csi.TopologyRequirement{Requisite: []*csi.Topology{segments(reach, "all", zone, "a"), segments(zone, "b")}}, "[map[" + zone + ":a] map[" + zone + ":b]]"},
		"the driver's":   {&csi.TopologyRequirement{Requisite: []*csi.Topology{segments(reach, "all"), nil}}, "[map[] map[]]"},
	} {
		if got := fmt.Sprint(requisite(c.req)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// created is a backend without volumes that keeps what is created.
type created struct {
	backend.Backend
	asked []backend.CreateVolume
	from  []map[string]string // of the volumes
	err   error
}

func (b *created) VolumeID(name string) string { return name }
func (b *created) NeedsCluster() bool          { return false }
func (b *created) GetVolume(context.Context, string) (backend.Volume, error) {
	return backend.Volume{}, backend.ErrNotFound
}
func (b *created) CreateVolume(_ context.Context, req backend.CreateVolume) (backend.Volume, error) {
	b.asked = append(b.asked, req)
	return backend.Volume{ID: req.ID, Name: req.Name, Size: req.Size, Labels: req.Labels, AccessibleFrom: b.from}, b.err
}
func (b *created) ListVolumes(context.Context, backend.Page) ([]backend.Volume, string, error) {
	return []backend.Volume{{ID: "v", AccessibleFrom: b.from}}, "", nil
}
func (b *created) Capacity(_ context.Context, _, _ string, segment map[string]string) (int64, error) {
	if len(b.from) > 0 && len(segment) > 0 && segment["zone"] == "" {
		return 0, nil
	}
	return 1 << 30, nil
}

// The segment reaches the backend, the volume gets no topology, and the capacity is the same
// everywhere.
func TestTopologyIsAPreference(t *testing.T) {
	b := &created{}
	s := New(b, slog.New(slog.DiscardHandler))
	block := []*csi.VolumeCapability{{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}}
	r, err := s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: block,
		AccessibilityRequirements: &csi.TopologyRequirement{Preferred: []*csi.Topology{segments("topology.kubernetes.io/zone", "z1")}}})
	if err != nil || len(r.Volume.AccessibleTopology) != 0 || len(b.asked) != 1 || b.asked[0].Preferred["topology.kubernetes.io/zone"] != "z1" {
		t.Fatalf("%+v, %+v, %v", r, b.asked, err)
	}
	for _, topology := range []*csi.Topology{nil, segments("csi.gemel.storage/reach", "all"), segments("topology.kubernetes.io/zone", "z1"), segments("unknown", "x")} {
		if r, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: topology}); err != nil || r.AvailableCapacity != 1<<30 {
			t.Errorf("%v: %v, %v", topology, r, err)
		}
	}
}

// What the backend says of a volume's workers is what Kubernetes is told, and a refused place is an
// error after which Kubernetes tries another worker.
func TestRestrictedVolumesHaveATopology(t *testing.T) {
	b := &created{from: []map[string]string{{"zone": "a"}, {"zone": "b", "rack": "1"}}}
	s := New(b, slog.New(slog.DiscardHandler))
	req := &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{segments("csi.gemel.storage/reach", "all", "zone", "a")}}}
	same := func(name string, v *csi.Volume, err error) {
		t.Helper()
		if err != nil || len(v.AccessibleTopology) != 2 || !maps.Equal(v.AccessibleTopology[0].Segments, b.from[0]) || !maps.Equal(v.AccessibleTopology[1].Segments, b.from[1]) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
	r, err := s.CreateVolume(t.Context(), req)
	same("create", r.GetVolume(), err)
	if q := b.asked[0].Requisite; len(q) != 1 || !maps.Equal(q[0], map[string]string{"zone": "a"}) {
		t.Errorf("%v", q)
	}
	list, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	same("list", list.GetEntries()[0].Volume, err)
	// A repeated call finds the volume, and does not ask again.
	found := &modified{v: backend.Volume{ID: "v", Name: "v", Size: 1 << 30, AccessibleFrom: b.from,
		Labels: map[string]string{v1alpha1.DiskLabelFSType: v1alpha1.FSTypeBlock, v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle}}}
	s2 := New(found, slog.New(slog.DiscardHandler))
	req.AccessibilityRequirements.Requisite[0].Segments["zone"] = "c"
	r, err = s2.CreateVolume(t.Context(), req)
	same("repeated", r.GetVolume(), err)
	got, err := s2.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "v"})
	same("get", got.GetVolume(), err)

	for _, c := range []struct {
		topology *csi.Topology
		want     int64
	}{{nil, 1 << 30}, {segments("zone", "a"), 1 << 30}, {segments("csi.gemel.storage/reach", "all"), 0}} {
		r, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: c.topology})
		if err != nil || r.AvailableCapacity != c.want || r.MaximumVolumeSize.GetValue() != c.want {
			t.Errorf("%v: %v, %v", c.topology, r, err)
		}
	}
	b.err = fmt.Errorf("%w: worker w3 does not have the labels zone=a", backend.ErrUnreachable)
	if _, err := s.CreateVolume(t.Context(), req); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "worker w3") {
		t.Error(err)
	}
}
