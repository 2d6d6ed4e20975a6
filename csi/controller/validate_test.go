package controller

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/capability"
	"github.com/gemel-storage/gemel/internal/stripe"
)

func TestChooseSizeRespectsLimitsAndFilesystem(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name                    string
		required, limit, source int64
		fs                      string
		want                    int64
		code                    codes.Code
	}{
		{"default", 0, 0, 0, "xfs", DefaultSize, codes.OK},
		{"default below a limit", 0, 500*mib + 1, 0, "ext4", 500 * mib, codes.OK},
		{"rounded up", 400*mib + 1, 0, 0, "xfs", 401 * mib, codes.OK},
		{"rounded above the limit", 400*mib + 1, 400*mib + 2, 0, "xfs", 0, codes.OutOfRange},
		{"source decides", 0, 0, 700 * mib, "xfs", 700 * mib, codes.OK},
		{"source is larger", 400 * mib, 0, 700 * mib, "xfs", 700 * mib, codes.OK},
		{"source is above the limit", 400 * mib, 600 * mib, 700 * mib, "xfs", 0, codes.OutOfRange},
		{"too small for xfs", 100 * mib, 0, 0, "xfs", capability.MinXFS, codes.OK},
		{"one byte, xfs", 1, 0, 0, "xfs", capability.MinXFS, codes.OK},
		{"too small for xfs, with room", 100 * mib, 400 * mib, 0, "xfs", capability.MinXFS, codes.OK},
		{"limit too small for xfs", 0, 200 * mib, 0, "xfs", 0, codes.OutOfRange},
		{"small ext4", mib, 0, 0, "ext4", mib, codes.OK},
		{"one byte, raw", 1, 0, 0, "", mib, codes.OK},
		{"limit below a step", 0, 1, 0, "", 0, codes.OutOfRange},
		{"contradiction", 2 * mib, mib, 0, "", 0, codes.InvalidArgument},
		{"negative", -1, 0, 0, "", 0, codes.InvalidArgument},
		{"beyond all", math.MaxInt64, 0, 0, "", 0, codes.OutOfRange},
	} {
		got, err := chooseSize(&csi.CapacityRange{RequiredBytes: c.required, LimitBytes: c.limit}, c.source, []capability.Access{{FSType: c.fs, Block: c.fs == ""}}, stripe.Layout{})
		if status.Code(err) != c.code || err == nil && got != c.want {
			t.Errorf("%s: %d, %v; want %d, %v", c.name, got, err, c.want, c.code)
		}
	}
	if got, err := chooseSize(nil, 0, []capability.Access{{Block: true}}, stripe.Layout{}); err != nil || got != DefaultSize {
		t.Errorf("no range: %d, %v", got, err)
	}
}

func TestParametersNameUnknownOnes(t *testing.T) {
	p, err := parseParameters(map[string]string{"preferredNode": "b", "writeCache": "write-through", "csi.storage.k8s.io/fstype": "xfs",
		"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/provisioner-secret-name": "s"}, false)
	if err != nil || p.mutable.PreferredNode != "b" || p.mutable.WriteCache != "write-through" || len(p.labels) != 1 || p.labels["csi.storage.k8s.io/pvc/name"] != "data" {
		t.Fatal(p, err)
	}
	if p, err := parseParameters(map[string]string{"pinnedNode": "b"}, true); err != nil || p.mutable.PinnedNode != "b" {
		t.Error(p, err)
	}
	if _, err := parseParameters(map[string]string{"pinnedNode": "b", "preferredNode": "a"}, true); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "parameters: preferredNode") {
		t.Error(err)
	}
	for k, v := range map[string]string{"preferedNode": "a", "pinnedNode": "c", "preferredNode": "c", "writeCache": "off", "tier": "hot", "csi.storage.k8s.io/fstype": "btrfs", "fstype": "xfs", "cluster": "main"} {
		_, err := parseParameters(map[string]string{k: v}, false)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), k) {
			t.Errorf("%s=%s: %v", k, v, err)
		}
	}
	for clusters, says := range map[bool]string{false: "supported parameters are pool, preferredNode", true: "supported parameters are cluster, luns, iops, stripeSize, spread, sessions, pool, preferredNode"} {
		if _, err := parseParameters(map[string]string{"x": ""}, clusters); !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say what is allowed", err)
		}
	}
	if p, err := parseParameters(map[string]string{"cluster": "main"}, true); err != nil || p.cluster != "main" {
		t.Error(p, err)
	}
	if p, err := parseParameters(map[string]string{"pool": "fast"}, true); err != nil || p.pool != "fast" {
		t.Error(p, err)
	}
}

func TestNamesAreCheckedAgainstTheSpecification(t *testing.T) {
	for name, ok := range map[string]bool{"pvc-1": true, "späte Größe\n": true, "": false, "a\x00": false, "a\x7f": false, "\u0085": false,
		"\xff": false, strings.Repeat("n", 128): true, strings.Repeat("n", 129): false} {
		if err := checkName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestCompatibleChecksTheLabels(t *testing.T) {
	xfs := capability.Access{FSType: "xfs", Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}
	block := capability.Access{Block: true, Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}
	shared := capability.Access{Block: true, Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}
	made := func(a ...capability.Access) backend.Volume {
		fs, mode := accessLabels(a)
		return backend.Volume{ID: "v", Labels: map[string]string{v1alpha1.DiskLabelFSType: fs, v1alpha1.DiskLabelAccess: mode}}
	}
	for _, c := range []struct {
		v  backend.Volume
		a  capability.Access
		ok bool
	}{
		{made(xfs), xfs, true}, {made(xfs), block, false}, {made(block), xfs, false},
		{made(xfs), capability.Access{FSType: "ext4"}, false},
		{made(block), shared, false}, {made(block, shared), block, true}, {made(block, shared), shared, true},
		{backend.Volume{}, shared, true}, // not created by CSI
	} {
		if err := compatible(c.v, c.a); (err == nil) != c.ok {
			t.Errorf("%v for %+v: %v", c.v.Labels, c.a, err)
		}
	}
}

func TestRepeatedCreateMustMatch(t *testing.T) {
	v := backend.Volume{Name: "n", Size: 10 << 20, SourceVolume: "s", Labels: map[string]string{v1alpha1.DiskLabelFSType: "xfs", v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle}}
	want := backend.CreateVolume{SourceVolume: "s", Labels: v.Labels}
	if err := matchesRequest(v, want, &csi.CapacityRange{RequiredBytes: 10 << 20}); err != nil {
		t.Error(err)
	}
	// It may have been expanded since.
	if err := matchesRequest(v, want, &csi.CapacityRange{RequiredBytes: 1 << 20}); err != nil {
		t.Error(err)
	}
	other := want
	other.SourceVolume = ""
	fs := want
	fs.Labels = map[string]string{v1alpha1.DiskLabelFSType: "ext4", v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle}
	pool, elsewhere := want, v
	pool.Pool, elsewhere.Pool = "fast", "fast"
	if err := errors.Join(matchesRequest(elsewhere, pool, nil), matchesRequest(elsewhere, want, nil), matchesRequest(v, pool, nil)); err != nil {
		t.Error(err)
	}
	elsewhere.Pool = "slow"
	for name, err := range map[string]error{
		"pool":   matchesRequest(elsewhere, pool, nil),
		"limit":  matchesRequest(v, want, &csi.CapacityRange{LimitBytes: 9 << 20}),
		"size":   matchesRequest(v, want, &csi.CapacityRange{RequiredBytes: 11 << 20}),
		"source": matchesRequest(v, other, nil),
		"fs":     matchesRequest(v, fs, nil),
	} {
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("another %s: %v", name, err)
		}
	}
}

func TestErrorsHaveTheirCSICodes(t *testing.T) {
	for err, want := range map[error]codes.Code{backend.ErrNotFound: codes.NotFound, backend.ErrExists: codes.AlreadyExists, backend.ErrInUse: codes.FailedPrecondition,
		backend.ErrUnreachable: codes.ResourceExhausted, backend.ErrInvalid: codes.InvalidArgument, backend.ErrExhausted: codes.ResourceExhausted, backend.ErrBadToken: codes.Aborted,
		backend.ErrTimeout: codes.DeadlineExceeded, backend.ErrUnavailable: codes.Unavailable, invalid("x"): codes.InvalidArgument} {
		if got := status.Code(grpcError(err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
	if grpcError(nil) != nil {
		t.Error("nil")
	}
}
