package userspace

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/attach/userspace/holder"
	"github.com/gemel-storage/gemel/internal/keylock"
	"github.com/gemel-storage/gemel/internal/wait"
)

// Config of an Attacher.
type Config struct {
	// Dir has one folder per attachment. It must outlive this process and be the same for later
	// ones.
	Dir string
	// Command starts a holder; "--dir FOLDER" is appended. Usually this program with a subcommand.
	Command []string
	// Agent is the socket of an Agent that starts holders instead of Command; empty: they are
	// children of this process.
	Agent    string
	Deadline time.Duration // of I/O without a working path; default 30 s
	// NoUnitAfter is how long the target must report that the LUN is not mapped before I/O fails;
	// default 5 s.
	NoUnitAfter time.Duration
	OpenLimit   time.Duration // for the first path at Attach; default 30 s
	Log         *slog.Logger
}

// Attacher implements attach.Attacher.
type Attacher struct {
	cfg     Config
	log     *slog.Logger
	spawner spawner
	volumes keylock.Set // serializes the calls for a volume
}

var _ attach.Attacher = (*Attacher)(nil)

// New checks the configuration and creates the folder.
func New(c Config) (*Attacher, error) {
	if c.Dir == "" || !filepath.IsAbs(c.Dir) || len(c.Command) == 0 && c.Agent == "" {
		return nil, errors.New("userspace attach: an absolute Dir, and Command or Agent are required")
	}
	if c.Deadline < 0 || c.OpenLimit < 0 || c.NoUnitAfter < 0 {
		return nil, errors.New("userspace attach: Deadline, OpenLimit and NoUnitAfter must not be negative")
	}
	if c.Deadline == 0 {
		c.Deadline = 30 * time.Second
	}
	if c.OpenLimit == 0 {
		c.OpenLimit = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("userspace attach: %w", err)
	}
	// mountinfo and sysfs have resolved paths.
	dir, err := filepath.EvalSymlinks(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("userspace attach: %w", err)
	}
	c.Dir = dir
	a := &Attacher{cfg: c, log: c.Log, spawner: children{c.Command}}
	if c.Agent != "" {
		a.spawner = agentClient{c.Agent}
	}
	return a, nil
}

// Attach implements attach.Attacher. If the same publish is repeated with another number of
// sessions, the holder continues with what it has, and the record keeps that number: a restart
// would cut off the users of the device for a matter of speed. The next attach has the new number.
func (a *Attacher) Attach(ctx context.Context, want attach.Attachment) (string, error) {
	dir, err := a.folder(want.VolumeID)
	if err != nil {
		return "", err
	}
	defer a.volumes.Lock(want.VolumeID)()
	r, err := loadRecord(dir)
	if err != nil {
		return "", err
	}
	if r != nil {
		o, err := a.observe(dir, r)
		if err != nil {
			return "", err
		}
		switch {
		case r.Attachment.Same(want) && o.healthy():
			if _, err := holder.Ask(ctx, dir, holder.Request{Op: holder.OpStatus}); err == nil {
				return o.loops[0].path, nil
			}
		case o.sameBoot && want.Generation < r.Attachment.Generation:
			return "", fmt.Errorf("%w: publish %d of volume %s was superseded by %d", attach.ErrInvalid,
				want.Generation, want.VolumeID, r.Attachment.Generation)
		}
		a.log.Warn("removing what an earlier attachment left", "volume", want.VolumeID, "generation", r.Attachment.Generation,
			"holder", o.alive, "mounted", o.mounted, "loops", len(o.loops))
		if err := a.teardown(ctx, dir, r, o, true); err != nil {
			return "", fmt.Errorf("remove the earlier attachment: %w", err)
		}
	}
	return a.build(ctx, dir, want)
}

// build creates an attachment; after an error it leaves nothing.
func (a *Attacher) build(ctx context.Context, dir string, want attach.Attachment) (device string, err error) {
	boot, err := attach.BootID()
	if err != nil {
		return "", err
	}
	r := &record{Version: want.RecordVersion(), BootID: boot, Attachment: want, Inode: randomInode(),
		File: fmt.Sprintf("%s.%d", want.VolumeID, want.Generation)}
	if err := os.MkdirAll(filepath.Join(dir, mountName), 0o700); err != nil {
		return "", err
	}
	if err := r.save(dir); err != nil { // from now on Detach finds everything
		return "", err
	}
	defer func() {
		if err == nil {
			return
		}
		// The caller's context may have ended, but the incomplete attachment must be removed.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		o, oerr := a.observe(dir, r)
		if oerr == nil {
			oerr = a.teardown(ctx, dir, r, o, true)
		}
		err = errors.Join(err, oerr)
	}()
	ready, err := a.startHolder(ctx, dir, r)
	if err != nil {
		return "", a.withLog(dir, err)
	}
	if _, err := bindLoop(ctx, a.file(dir, r), uint32(ready.BlockSize), want.ReadOnly); err != nil {
		return "", err
	}
	o, err := a.observe(dir, r)
	if err != nil {
		return "", err
	}
	if !o.healthy() {
		return "", fmt.Errorf("%w: the new attachment is incomplete: holder %v, mount %v, %d loop devices", attach.ErrFailed, o.alive, o.mounted, len(o.loops))
	}
	if !o.loops[0].direct {
		a.log.Warn("the loop device has no direct I/O: data is cached twice", "volume", want.VolumeID, "device", o.loops[0].path)
	}
	a.log.Info("attached", "volume", want.VolumeID, "generation", want.Generation, "device", o.loops[0].path, "size", ready.Size)
	return o.loops[0].path, nil
}

// withLog logs the end of the holder's log, which is removed with the folder.
func (a *Attacher) withLog(dir string, err error) error {
	if raw, lerr := os.ReadFile(filepath.Join(dir, "holder.log")); lerr == nil && len(raw) > 0 {
		a.log.Error("attach holder failed", "err", err, "log", string(raw[max(0, len(raw)-4096):]))
	}
	return err
}

// randomInode avoids the small numbers that other filesystems use.
func randomInode() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])>>1 | 1<<62
}

func (a *Attacher) file(dir string, r *record) string { return filepath.Join(dir, mountName, r.File) }

// Detach implements attach.Attacher.
func (a *Attacher) Detach(ctx context.Context, volumeID string) error {
	dir, err := a.folder(volumeID)
	if err != nil {
		return err
	}
	defer a.volumes.Lock(volumeID)()
	r, err := loadRecord(dir)
	if err != nil {
		return err
	}
	if r == nil {
		// Without a record nothing was started, but the folder may exist.
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return forget(dir)
	}
	o, err := a.observe(dir, r)
	if err != nil {
		return err
	}
	return a.teardown(ctx, dir, r, o, false)
}

// Purge removes an attachment even if it is in use: for a lost LUN, and for failed tests. Unwritten
// data is lost.
func (a *Attacher) Purge(ctx context.Context, volumeID string) error {
	dir, err := a.folder(volumeID)
	if err != nil {
		return err
	}
	defer a.volumes.Lock(volumeID)()
	r, err := loadRecord(dir)
	if err != nil || r == nil {
		return err
	}
	o, err := a.observe(dir, r)
	if err != nil {
		return err
	}
	return a.teardown(ctx, dir, r, o, true)
}

// Resize implements attach.Attacher.
func (a *Attacher) Resize(ctx context.Context, volumeID string) (int64, error) {
	dir, err := a.folder(volumeID)
	if err != nil {
		return 0, err
	}
	defer a.volumes.Lock(volumeID)()
	st, o, r, err := a.status(dir, volumeID)
	if err != nil {
		return 0, err
	}
	ans, err := holder.Ask(ctx, dir, holder.Request{Op: holder.OpResize})
	if err != nil {
		return st.Size, fmt.Errorf("resize of %s: %w", volumeID, err)
	}
	var size int64
	err = wait.Bounded(ctx, "resize of "+o.loops[0].path, func() (err error) {
		size, err = resizeLoop(ctx, o.loops[0], a.file(dir, r), ans.Size)
		return err
	})
	if err != nil {
		return 0, err
	}
	if size != ans.Size {
		return size, fmt.Errorf("%w: %s has %d bytes, the LUN %d", attach.ErrFailed, o.loops[0].path, size, ans.Size)
	}
	return size, nil
}

// Status implements attach.Attacher.
func (a *Attacher) Status(ctx context.Context, volumeID string) (attach.Status, error) {
	dir, err := a.folder(volumeID)
	if err != nil {
		return attach.Status{}, err
	}
	st, _, _, err := a.status(dir, volumeID)
	if err != nil {
		return st, err
	}
	ans, err := holder.Ask(ctx, dir, holder.Request{Op: holder.OpStatus})
	if err != nil {
		return st, fmt.Errorf("%w: %w", attach.ErrFailed, err)
	}
	st.Paths, st.NoUnit = ans.Paths, ans.NoUnit
	return st, nil
}

func (a *Attacher) status(dir, volumeID string) (st attach.Status, o observed, r *record, err error) {
	if r, err = loadRecord(dir); err != nil {
		return st, o, r, err
	}
	if r == nil {
		return st, o, r, fmt.Errorf("%w: %s", attach.ErrNotAttached, volumeID)
	}
	st.Attachment = r.Attachment
	if o, err = a.observe(dir, r); err != nil {
		return st, o, r, err
	}
	if len(o.loops) == 1 {
		st.Device, st.Rdev = o.loops[0].path, o.loops[0].rdev
		if st.Size, err = loopSize(o.loops[0].number); err != nil {
			return st, o, r, err
		}
	}
	switch {
	case !o.sameBoot:
		err = fmt.Errorf("%w: %s is from before the last boot", attach.ErrFailed, volumeID)
	case !o.alive:
		err = fmt.Errorf("%w: the holder process of %s has ended", attach.ErrFailed, volumeID)
	case !o.mounted || len(o.loops) != 1:
		err = fmt.Errorf("%w: %s has no device", attach.ErrFailed, volumeID)
	}
	return st, o, r, err
}

// Attached implements attach.Attacher.
func (a *Attacher) Attached() ([]string, error) {
	entries, err := os.ReadDir(a.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("userspace attach: %w", err)
	}
	var out []string
	for _, e := range entries {
		if _, err := os.Lstat(filepath.Join(a.cfg.Dir, e.Name(), recordName)); err == nil {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out, nil
}

// LUNs implements attach.Attacher.
func (a *Attacher) LUNs() (n int, err error) {
	ids, err := a.Attached()
	for _, id := range ids {
		r, err := loadRecord(filepath.Join(a.cfg.Dir, id))
		switch {
		case err != nil:
			n++
		case r != nil:
			n += len(r.Attachment.LUNs())
		}
	}
	return n, err
}
