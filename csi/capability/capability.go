// Package capability has the supported kinds of access: CSI volume capabilities, filesystems and
// sizes. Controller and node share it, so that they agree.
package capability

import (
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Filesystems of mounted volumes. The first is the default.
var Filesystems = []string{"xfs", "ext4"}

// MinXFS is the smallest volume that mkfs.xfs accepts, in bytes (xfsprogs 5.19 and later).
const MinXFS = 300 << 20

type mode = csi.VolumeCapability_AccessMode_Mode

// Supported modes, and whether several nodes may have the volume at a time.
var modes = map[mode]bool{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        false,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   false,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: false,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  false,
	csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    true,
	csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  true,
	csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   true,
}

// Access is one parsed volume capability.
type Access struct {
	Mode   mode
	Block  bool     // raw block device
	FSType string   // of a mounted volume
	Flags  []string // mount options
}

// MultiNode reports whether several nodes may have the volume.
func (a Access) MultiNode() bool { return modes[a.Mode] }

// ReadOnly reports whether the mode never writes.
func (a Access) ReadOnly() bool {
	return a.Mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY || a.Mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// WithoutLog reports whether the filesystem is mounted without the replay of its log.
func (a Access) WithoutLog() bool {
	return slices.Contains(a.Flags, "norecovery") || slices.Contains(a.Flags, "noload")
}

// SingleWriter reports whether only one target path may have the volume.
func (a Access) SingleWriter() bool {
	return a.Mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
}

// OneWriter reports whether one node writes and the others read.
func (a Access) OneWriter() bool {
	return a.Mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
}

// Parse checks a capability. An error names the supported values.
func Parse(c *csi.VolumeCapability) (a Access, err error) {
	a.Mode = c.GetAccessMode().GetMode()
	multi, ok := modes[a.Mode]
	if !ok {
		return a, fmt.Errorf("access mode %s is not supported", a.Mode)
	}
	switch {
	case c.GetBlock() != nil:
		a.Block = true
		return a, nil
	case c.GetMount() == nil:
		return a, fmt.Errorf("the access type is neither block nor mount")
	}
	a.FSType, a.Flags = c.GetMount().GetFsType(), c.GetMount().GetMountFlags()
	if a.FSType == "" {
		a.FSType = Filesystems[0]
	}
	switch {
	case !slices.Contains(Filesystems, a.FSType):
		return a, fmt.Errorf("filesystem %q is not supported: use one of %s", a.FSType, strings.Join(Filesystems, ", "))
	case multi && !a.ReadOnly():
		return a, fmt.Errorf("access mode %s requires a raw block volume (volumeMode: Block): %s cannot be written from several nodes", a.Mode, a.FSType)
	case c.GetMount().GetVolumeMountGroup() != "":
		return a, fmt.Errorf("volume_mount_group is not supported")
	}
	return a, nil
}

// ParseAll checks every capability of a volume. They must all be block or of one filesystem.
func ParseAll(list []*csi.VolumeCapability) ([]Access, error) {
	var out []Access
	for i, c := range list {
		a, err := Parse(c)
		if err != nil {
			return nil, fmt.Errorf("volume_capabilities[%d]: %w", i, err)
		}
		if i > 0 && a.FSType != out[0].FSType {
			return nil, fmt.Errorf("volume_capabilities[%d]: a volume must be either raw block or of one filesystem", i)
		}
		out = append(out, a)
	}
	return out, nil
}
