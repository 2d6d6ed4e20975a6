package controller

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

func TestUnknownMutableParametersAreNamed(t *testing.T) {
	m, err := parseMutable(map[string]string{"preferredNode": "b", "writeCache": "write-through", "csi.storage.k8s.io/pvc/name": "data"})
	if err != nil || m != (backend.Mutable{PreferredNode: "b", WriteCache: "write-through"}) {
		t.Fatal(m, err)
	}
	if m, err := parseMutable(map[string]string{"preferredNode": "", "writeCache": ""}); err != nil || m != (backend.Mutable{}) {
		t.Fatal(m, err)
	}
	for k, v := range map[string]string{"preferredNode": "c", "writeCache": "writethrough", "cluster": "main", "writecache": "write-back"} {
		_, err := parseMutable(map[string]string{k: v})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), k) || !strings.Contains(err.Error(), "mutable_parameters") {
			t.Errorf("%s=%s: %v", k, v, err)
		}
	}
}

// modified is a backend with one volume that records modifications.
type modified struct {
	backend.Backend
	v     backend.Volume
	asked []backend.Mutable
}

func (b *modified) VolumeID(string) string { return "v" }
func (b *modified) NeedsCluster() bool     { return false }
func (b *modified) GetVolume(context.Context, string) (backend.Volume, error) {
	return b.v, nil
}
func (b *modified) ModifyVolume(_ context.Context, _ string, m backend.Mutable) (backend.Volume, error) {
	b.asked = append(b.asked, m)
	b.v.Mutable = m.Over(b.v.Mutable)
	return b.v, nil
}

// A repeated create with another VolumeAttributesClass applies that class; the StorageClass's own
// parameters are for new volumes only.
func TestRepeatedCreateAppliesAnotherClass(t *testing.T) {
	b := &modified{v: backend.Volume{ID: "v", Name: "v", Size: 1 << 30, Labels: map[string]string{v1alpha1.DiskLabelFSType: v1alpha1.FSTypeBlock, v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle},
		Mutable: backend.Mutable{PreferredNode: "a", WriteCache: "write-back"}}}
	s := New(b, slog.New(slog.DiscardHandler))
	create := func(params, mutable map[string]string) {
		t.Helper()
		_, err := s.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v", Parameters: params, MutableParameters: mutable, VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	create(map[string]string{"preferredNode": "b"}, nil)
	create(nil, map[string]string{"writeCache": "write-back"})
	if len(b.asked) != 0 {
		t.Fatalf("%+v", b.asked)
	}
	create(nil, map[string]string{"writeCache": "write-through"})
	create(nil, map[string]string{"writeCache": "write-through"})
	if len(b.asked) != 1 || b.v.Mutable != (backend.Mutable{PreferredNode: "a", WriteCache: "write-through"}) {
		t.Fatalf("%+v, %+v", b.asked, b.v)
	}
}
