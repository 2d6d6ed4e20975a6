package userspace

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/csi/attach"
)

// observe reads the state of an attachment. It does no I/O to the LUN and does not call the holder.
func (a *Attacher) observe(dir string, r *record) (o observed, err error) {
	boot, err := attach.BootID()
	if err != nil {
		return o, err
	}
	if o.sameBoot = boot == r.BootID; !o.sameBoot {
		return o, nil
	}
	if o.alive, err = lockedByOther(dir); err != nil {
		return o, fmt.Errorf("holder's lock: %w", err)
	}
	mnt := filepath.Join(dir, mountName)
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(mnt))
	if err != nil {
		return o, fmt.Errorf("mounts: %w", err)
	}
	o.mounted = len(mounts) > 0
	if o.loops, err = findLoops(r.Inode, r.File); err != nil {
		return o, err
	}
	for i := range o.loops {
		l := &o.loops[i]
		if l.users, err = mountsOf(l.rdev); err != nil {
			return o, err
		}
		// Device mapper, md and similar on top of it.
		stacked, err := os.ReadDir(fmt.Sprintf("/sys/block/loop%d/holders", l.number))
		if err != nil && !os.IsNotExist(err) {
			return o, err
		}
		for _, s := range stacked {
			l.users = append(l.users, "/dev/"+s.Name())
		}
	}
	return o, nil
}

// mountsOf lists the mount points of a device, in the order of mounting.
func mountsOf(rdev uint64) ([]string, error) {
	major, minor := int(unix.Major(rdev)), int(unix.Minor(rdev))
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Major != major || m.Minor != minor, false
	})
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	var out []string
	for _, m := range mounts {
		out = append(out, m.Mountpoint)
	}
	return out, nil
}
