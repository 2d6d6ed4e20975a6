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

func (n *unlocked) health(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if req.VolumeId == "" {
		return nil, invalid("volume_id is missing")
	}
	v := &csi.VolumeHealth{VolumeId: req.VolumeId}
	r, err := n.load(req.VolumeId)
	if err != nil {
		return nil, err
	}
	if r != nil {
		v.HealthStatuses = n.findings(ctx, r)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: v}, nil
}

// findings are the problems of a staged volume on this node.
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
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "AttachmentFailed", "%v: delete the pods that use the volume on this node, so that it is staged again", err)
		return out
	}
	lost, deaf, fewer := "", "", ""
	say := func(list *string, p attach.Path) { // once, however many LUNs a striped volume has
		if s := fmt.Sprintf(" %s (%s)", p.Portal, p.LastError); !strings.Contains(*list, s) {
			*list += s
		}
	}
	for _, p := range st.Paths {
		switch {
		case !p.Connected && st.Reached(p):
			say(&fewer, p)
		case !p.Connected:
			say(&lost, p)
		case p.NoALUA:
			say(&deaf, p)
		}
	}
	switch {
	case st.NoUnit:
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NotMapped", "the target reports that the LUN is not mapped to this node: the volume was detached; delete the pods that use it on this node:%s", lost)
	case !st.Serves():
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NoPath", "no path to the LUN works: check the network and the target nodes:%s", lost)
	case lost != "":
		add(csi.VolumeHealthErrorType_DEGRADED, "HostRedundancyLost", "paths are missing:%s", lost)
	}
	if fewer != "" {
		add(csi.VolumeHealthErrorType_DEGRADED, "SessionMissing", "I/O takes fewer than the %d sessions to each portal that the volume has:%s", st.Attachment.SessionCount(), fewer)
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

// filesystemFindings reports a filesystem that has had an error; counted is the error count of
// ext4. The options of the mount do not change after an error, and those of the filesystem not
// always: newer kernels keep "rw" and add "emergency_ro", and those in between (6.1 of Debian) show
// nothing, so that the requested mode and the error count have to be combined.
func filesystemFindings(m *mountinfo.Info, counted string, wantRO bool) (out []*csi.VolumeHealth_VolumeHealthEntry) {
	add := func(reason, message string) {
		out = append(out, &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: reason, Message: message})
	}
	turned := hasOption(m.VFSOptions, "ro") && !wantRO || hasOption(m.VFSOptions, "emergency_ro") || hasOption(m.VFSOptions, "shutdown") ||
		hasOption(m.VFSOptions, "errors=remount-ro") && counted != ""
	switch {
	case turned && counted != "":
		add("FilesystemReadOnly", "the filesystem became read-only after an error, until it is staged again: delete the pods that use it on this node: "+counted)
	case turned:
		add("FilesystemReadOnly", "the filesystem became read-only after an error, until it is staged again: delete the pods that use it on this node")
	case counted != "":
		add("FilesystemErrors", "the filesystem is damaged and may reject writes; it is checked and repaired when it is staged again: delete the pods that use it on this node: "+counted)
	}
	return out
}

// ext4Errors are the errors that an ext4 filesystem has counted, empty for none and for other
// filesystems. It reads sysfs, not the device.
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
	out := fmt.Sprintf("ext4 has counted %s errors", n)
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

// storageHealth reports whether the storage as a whole is reachable: an attachment whose own
// process has failed says nothing about that, nor does one that the storage has fenced.
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
		switch {
		case !st.Serves():
			dead++
		case st.Lacks():
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
		add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, "NoPath", "none of %d attached volumes has a working path", dead)
	case dead > 0 || reduced > 0:
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, "HostRedundancyLost", "of %d attached volumes, %d have no path and %d lack one", dead+serving, dead, reduced)
	}
	return r, nil
}
