package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

func (n *unlocked) health(ctx context.Context, q *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if q.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	v := &csi.VolumeHealth{VolumeId: q.VolumeId}
	r, err := n.load(q.VolumeId)
	if err != nil {
		return nil, err
	}
	if r != nil {
		v.HealthStatuses = n.findings(ctx, r)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: v}, nil
}

// findings is what is wrong with a staged volume, seen from this node.
func (n *unlocked) findings(ctx context.Context, r *record) (out []*csi.VolumeHealth_VolumeHealthEntry) {
	add := func(kind csi.VolumeHealthErrorType, reason, format string, args ...any) {
		out = append(out, &csi.VolumeHealth_VolumeHealthEntry{Status: kind, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	st, err := n.cfg.Attacher.Status(ctx, r.VolumeID)
	switch {
	case errors.Is(err, attach.ErrNotAttached):
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NotAttached", "the volume is staged, but has no device: stage it again")
		return out
	case err != nil:
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "AttachmentFailed", "%v: end the pods that use the volume on this node, so that it is staged again", err)
		return out
	}
	serving, lost, deaf := false, "", ""
	for _, p := range st.Paths {
		serving = serving || p.Current
		switch {
		case !p.Connected:
			lost += fmt.Sprintf(" %s (%s)", p.Portal, p.LastError)
		case p.NoALUA:
			deaf += fmt.Sprintf(" %s (%s)", p.Portal, p.LastError)
		}
	}
	switch {
	case st.NoUnit:
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NotMapped", "the target says that this node has no such LUN (any more): the volume was detached from it; end the pods that use it on this node:%s", lost)
	case !serving:
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NoPath", "no path serves:%s", lost)
	case lost != "":
		add(csi.VolumeHealthErrorType_DEGRADED, "HostRedundancyLost", "paths are missing:%s", lost)
	}
	if deaf != "" {
		add(csi.VolumeHealthErrorType_DEGRADED, "NoALUAHandler", "paths are used without regard to who owns the LUN:%s: modprobe scsi_dh_alua on this node, "+
			"then echo alua >/sys/block/sdX/device/dh_state for each, and multipathd reconfigure", deaf)
	}
	if r.Block {
		return out
	}
	m, err := mountAt(r.Staging)
	if err != nil || !shows(m, st.Rdev) {
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NotMounted", "the device is not mounted at %s (%v)", r.Staging, err)
		return out
	}
	return append(out, filesystemFindings(m, ext4Errors(sysRoot, st.Rdev), r.Attachment.ReadOnly || hasRO(r.Flags))...)
}

const sysRoot = "/sys"

// filesystemFindings tells of a filesystem that has met an error; counted is what ext4 says of errors. The options of the mount itself stay as they
// were; those of the filesystem under it do not always: newer kernels leave "rw" there and say "emergency_ro", and those in between (6.1 of
// Debian) nothing, so that what was asked for and what was counted have to be put together.
func filesystemFindings(m *mountinfo.Info, counted string, wantRO bool) (out []*csi.VolumeHealth_VolumeHealthEntry) {
	add := func(reason, message string) {
		out = append(out, &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: reason, Message: message})
	}
	turned := hasOption(m.VFSOptions, "ro") && !wantRO || hasOption(m.VFSOptions, "emergency_ro") || hasOption(m.VFSOptions, "shutdown") ||
		hasOption(m.VFSOptions, "errors=remount-ro") && counted != ""
	switch {
	case turned && counted != "":
		add("FilesystemReadOnly", "the filesystem has turned read-only after an error and stays so until it is staged again: "+counted)
	case turned:
		add("FilesystemReadOnly", "the filesystem has turned read-only after an error and stays so until it is staged again")
	case counted != "":
		add("FilesystemErrors", "the filesystem is damaged, may refuse writes, and is checked and repaired when it is staged again: end the pods that use it on this node: "+counted)
	}
	return out
}

// ext4Errors is what an ext4 filesystem has counted, empty for none and for other filesystems. It asks sysfs, not the device.
func ext4Errors(sys string, rdev uint64) string {
	dir, err := os.Readlink(filepath.Join(sys, "dev/block", fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev))))
	if err != nil {
		return ""
	}
	read := func(name string) string {
		raw, _ := os.ReadFile(filepath.Join(sys, "fs/ext4", filepath.Base(dir), name))
		return strings.TrimSpace(string(raw))
	}
	n := read("errors_count")
	if n == "" || n == "0" {
		return ""
	}
	out := fmt.Sprintf("ext4 has met %s errors", n)
	if f := read("last_error_func"); f != "" {
		out += fmt.Sprintf(", the last in %s, line %s", f, read("last_error_line"))
	}
	return out
}

func hasRO(flags []string) bool {
	for _, f := range flags {
		if hasOption(f, "ro") {
			return true
		}
	}
	return false
}

// storageHealth tells whether the storage as a whole is in reach: an attachment whose own process has failed says nothing
// about that, nor does one that the storage has detached.
func (n *unlocked) storageHealth(ctx context.Context) (*csi.NodeGetStorageHealthResponse, error) {
	ids, err := n.cfg.Attacher.Attached()
	if err != nil {
		return nil, err
	}
	serving, dead, reduced := 0, 0, 0
	for _, id := range ids {
		st, err := n.cfg.Attacher.Status(ctx, id)
		if err != nil || st.NoUnit {
			continue
		}
		current, missing := false, false
		for _, p := range st.Paths {
			current, missing = current || p.Current, missing || !p.Connected
		}
		switch {
		case !current:
			dead++
		case missing:
			reduced++
			fallthrough
		default:
			serving++
		}
	}
	r := &csi.NodeGetStorageHealthResponse{}
	add := func(kind csi.StorageHealthErrorType, reason, format string, args ...any) {
		r.BackendHealth = append(r.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: kind, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case dead > 0 && serving == 0:
		add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, "NoPath", "no path serves for any of %d attached volumes", dead)
	case dead > 0 || reduced > 0:
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, "HostRedundancyLost", "of %d attached volumes %d have no path and %d miss one", dead+serving, dead, reduced)
	}
	return r, nil
}
