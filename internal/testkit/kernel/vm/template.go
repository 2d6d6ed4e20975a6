package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// warm loads what every worker will want, modules and programs, so that the clones have it in
// memory.
const warm = `modprobe -a iscsi_tcp dm_multipath dm_service_time scsi_dh_alua sd_mod sg xfs loop fuse nf_tables crc32c_generic
cat $(which multipathd multipath iscsiadm iscsid fio mkfs.ext4 mkfs.xfs mount lsblk udevadm sg_rtpg) /lib/x86_64-linux-gnu/*.so* >/dev/null
sync`

// SaveTemplate boots a machine from the base disk, waits until it has settled and saves it: the
// disk, and the state of memory and devices.
func (l Lab) SaveTemplate(ctx context.Context) error {
	dir := l.file("template")
	defer os.RemoveAll(dir)
	disk, state := filepath.Join(l.Dir, "template.qcow2.new"), l.savedState()+".new"
	if err := overlay(ctx, disk, l.file("base.ext4"), "raw"); err != nil {
		return err
	}
	m, err := l.start(ctx, dir, disk, [2]string{"user,id=s0,restrict=on", "user,id=s1,restrict=on"})
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.waitReady(ctx, 3*time.Minute); err != nil {
		return err
	}
	if _, err := m.agent.Shell(ctx, warm); err != nil {
		return err
	}
	if _, err := m.monitor.command(ctx, "stop", nil); err != nil {
		return err
	}
	if _, err := m.monitor.command(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(10e9)}); err != nil { // bytes a second
		return err
	}
	if _, err := m.monitor.command(ctx, "migrate", map[string]any{"uri": fmt.Sprintf("exec:cat >'%s'", state)}); err != nil {
		return err
	}
	if err := m.monitor.migrated(ctx); err != nil {
		return err
	}
	m.close()
	// The state is renamed last: it is what says that the template is whole.
	if err := os.Rename(disk, l.savedDisk()); err != nil {
		return err
	}
	return os.Rename(state, l.savedState())
}
