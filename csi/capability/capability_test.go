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

func TestParse(t *testing.T) {
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
		t.Error("block and mount were taken together")
	}
	if _, err := ParseAll([]*csi.VolumeCapability{mount(writer, ""), mount(reader, "xfs")}); err != nil {
		t.Error(err)
	}
}
