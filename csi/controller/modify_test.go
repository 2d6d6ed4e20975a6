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
	for _, pin := range []string{"a", "b", "none"} {
		if m, err := parseMutable(map[string]string{"pinnedNode": pin}); err != nil || m != (backend.Mutable{PinnedNode: pin}) {
			t.Error(m, err)
		}
	}
	if _, err := parseMutable(map[string]string{"pinnedNode": "b", "preferredNode": "a"}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "leave preferredNode out") {
		t.Error(err)
	}
	if _, err := parseMutable(map[string]string{"pinnedNode": "none", "preferredNode": "a"}); err != nil {
		t.Error(err)
	}
	for k, v := range map[string]string{"preferredNode": "c", "pinnedNode": "c", "tier": "fast", "writeCache": "writethrough", "cluster": "main", "writecache": "write-back"} {
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
	err   error
}

func (b *modified) VolumeID(string) string { return "v" }
func (b *modified) NeedsCluster() bool     { return false }
func (b *modified) GetVolume(context.Context, string) (backend.Volume, error) {
	return b.v, nil
}
func (b *modified) ModifyVolume(_ context.Context, _ string, m backend.Mutable) (backend.Volume, error) {
	b.asked = append(b.asked, m)
	if b.err != nil {
		return backend.Volume{}, b.err
	}
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

// A pin that the pair does not know yet is refused as such; on a volume that has just been created
// the refusal is not final, or the volume would never be deleted.
func TestPinThatIsNotSupported(t *testing.T) {
	b := &modified{err: backend.ErrUnsupported, v: backend.Volume{ID: "v", Name: "v", Size: 1 << 30, Mutable: backend.Mutable{PinnedNode: v1alpha1.NoPin}}}
	s, pin := New(b, slog.New(slog.DiscardHandler)), map[string]string{"pinnedNode": "b"}
	if _, err := s.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: "v", MutableParameters: pin}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if _, err := s.created(t.Context(), b.v, backend.Mutable{PinnedNode: "b"}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}
