package capability

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

func mount(m mode, fs string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: m},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs}}}
}

func block(m mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: m},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
}

func TestParseNamesSupportedValues(t *testing.T) {
	const (
		writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		multi  = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		reader = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	)
	for _, c := range []struct {
		name string
		in   *csi.VolumeCapability
		want string // part of the error; empty: none
	}{
		{"default filesystem", mount(writer, ""), ""},
		{"ext4", mount(writer, "ext4"), ""},
		{"unknown filesystem", mount(writer, "ntfs"), "xfs, ext4"},
		{"shared block", block(multi), ""},
		{"shared filesystem", mount(multi, "xfs"), "raw block"},
		{"readers", mount(reader, "xfs"), ""},
		{"no access type", &csi.VolumeCapability{AccessMode: block(writer).AccessMode}, "neither"},
		{"no mode", &csi.VolumeCapability{AccessType: block(writer).AccessType}, "UNKNOWN"},
		{"nothing", nil, "UNKNOWN"},
	} {
		a, err := Parse(c.in)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.name == "default filesystem" && a.FSType != "xfs" {
			t.Errorf("default is %q", a.FSType)
		}
	}
	if _, err := ParseAll([]*csi.VolumeCapability{mount(writer, ""), block(writer)}); err == nil {
		t.Error("block and mount were accepted together")
	}
	if _, err := ParseAll([]*csi.VolumeCapability{mount(writer, ""), mount(reader, "xfs")}); err != nil {
		t.Error(err)
	}
}

// Every mode of the specification is accepted, or rejected with the reason. A filesystem is never
// written from two nodes.
func TestEveryModeIsAcceptedOrRejected(t *testing.T) {
	const needsBlock = "requires a raw block volume"
	type rights struct{ multi, readOnly, onePath, oneWriter bool }
	for m, c := range map[mode]struct {
		rights
		mount, block string // part of the error; empty: none
	}{
		csi.VolumeCapability_AccessMode_UNKNOWN:                   {mount: "not supported", block: "not supported"},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        {},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   {rights: rights{readOnly: true}},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: {rights: rights{onePath: true}},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  {},
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    {rights: rights{multi: true, readOnly: true}},
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  {rights: rights{multi: true, oneWriter: true}, mount: needsBlock},
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   {rights: rights{multi: true}, mount: needsBlock},
	} {
		for kind, x := range map[string]struct {
			in   *csi.VolumeCapability
			want string
		}{"mount": {mount(m, "ext4"), c.mount}, "block": {block(m), c.block}} {
			a, err := Parse(x.in)
			if (err != nil) != (x.want != "") || err != nil && (!strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), m.String())) {
				t.Errorf("%v, %s: %v, want %q", m, kind, err, x.want)
			}
			if got := (rights{a.MultiNode(), a.ReadOnly(), a.SingleWriter(), a.OneWriter()}); err == nil && got != c.rights {
				t.Errorf("%v, %s: %+v", m, kind, got)
			}
		}
	}
	if n := len(csi.VolumeCapability_AccessMode_Mode_name); n != len(modes)+1 {
		t.Errorf("the specification has %d modes, here are %d and UNKNOWN", n, len(modes))
	}
	group := mount(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "xfs")
	group.GetMount().VolumeMountGroup = "1000"
	if _, err := Parse(group); err == nil || !strings.Contains(err.Error(), "volume_mount_group") {
		t.Error(err) // the kubelet does fsGroup: CSIDriver.fsGroupPolicy is File
	}
}
