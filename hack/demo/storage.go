package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/kubelet"
	"github.com/gemel-storage/gemel/internal/testkit/load"
)

// kind is how a volume is used.
type kind string

const (
	mounted kind = "mounted (xfs)"
	block   kind = "raw block"
	device  kind = "raw I/O" // without root: our initiator, nothing between
)

// volume is one volume of the demo.
type volume struct {
	name string
	kind kind
	lun  string // uuid at the pair
	size int64  // bytes
	snap bool   // made from a snapshot

	csi *kubelet.Volume
	dev *initiator.Device
}

// storage is how the demo gets at volumes: through CSI, or straight at the pair without root. What
// is not there is no error for release, destroy and destroySnapshot.
type storage interface {
	// create makes a volume, from a snapshot if one is named, and attaches it for use.
	create(ctx context.Context, name string, k kind, size int64, snapshot string) (*volume, error)
	// open opens what the application writes to; a file is made unless the volume is a clone.
	open(v *volume) (load.Target, error)
	// expand grows a volume in use; usable is what the application sees afterwards, in bytes.
	expand(ctx context.Context, v *volume, size int64) (usable int64, err error)
	snapshot(ctx context.Context, v *volume, name string) (id string, err error)
	// release ends the use.
	release(ctx context.Context, v *volume) error
	destroy(ctx context.Context, v *volume) error
	destroySnapshot(ctx context.Context, id string) error
	close() error
}

// lunOf finds the LUN's uuid at the end of a CSI volume id.
func lunOf(id string) (string, error) {
	tail := id[max(0, len(id)-36):]
	if _, err := uuid.Parse(tail); err != nil || strings.ToLower(tail) != tail {
		return "", fmt.Errorf("volume id %q does not end with the uuid of a LUN", id)
	}
	return tail, nil
}
