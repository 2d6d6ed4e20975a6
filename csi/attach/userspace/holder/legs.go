package holder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/initiator/striped"
)

// device is what the file reads and writes: a LUN, or a volume that is striped over several.
type device interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	WriteAt(ctx context.Context, p []byte, off int64) (int, error)
	Flush(ctx context.Context) error
	WriteZeroes(ctx context.Context, off, n int64, mayUnmap bool) error
	Rescan(ctx context.Context) (size int64, err error)
	Size() int64
	BlockSize() int
}

// legs are the LUNs of the attachment, in their order.
type legs []*initiator.Device

// open logs in to all LUNs of the attachment at once. It is all or none.
func open(ctx context.Context, c Config, log *slog.Logger) (device, legs, error) {
	luns := c.Attachment.LUNs()
	if most := len(c.Attachment.Others); slices.ContainsFunc(luns, func(l attach.Leg) bool { return l.Target < 0 || l.Target > most }) {
		return nil, nil, fmt.Errorf("%w: %s: a leg is at a target that is not named", attach.ErrInvalid, attach.KeyLegsAt)
	}
	all, errs := make(legs, len(luns)), make([]error, len(luns))
	var wg sync.WaitGroup
	for i, l := range luns {
		wg.Go(func() {
			log := log
			if c.Attachment.Striped() {
				log = log.With("leg", i)
			}
			if all[i], errs[i] = initiator.Open(ctx, initiatorConfig(c, l, log)); errs[i] != nil && c.Attachment.Striped() {
				errs[i] = fmt.Errorf("leg %d, LUN %d: %w", i, l.LUN, errs[i])
			}
		})
	}
	wg.Wait()
	dev, err := assemble(c.Attachment, all, errors.Join(errs...))
	if err == nil {
		return dev, all, nil
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if cerr := slices.DeleteFunc(all, func(d *initiator.Device) bool { return d == nil }).close(end); cerr != nil {
		log.Warn("cannot log out", "err", cerr)
	}
	return nil, nil, err
}

func assemble(a attach.Attachment, all legs, err error) (device, error) {
	if err != nil {
		return nil, err
	}
	if !a.Striped() {
		return all[0], nil
	}
	parts := make([]striped.Leg, len(all))
	for i, d := range all {
		parts[i] = d
	}
	return striped.New(a.Layout(), parts)
}

func (l legs) each(f func(i int, d *initiator.Device) error) error {
	errs := make([]error, len(l))
	var wg sync.WaitGroup
	for i, d := range l {
		wg.Go(func() { errs[i] = f(i, d) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l legs) close(ctx context.Context) error {
	return l.each(func(_ int, d *initiator.Device) error { return d.Close(ctx) })
}

// setCredentials of the LUNs on a pair; of all, if its name is empty.
func (l legs) setCredentials(a attach.Attachment, pair string, auth, mutual *initiator.CHAP) error {
	luns, on := a.LUNs(), a.OnPair(pair)
	return l.each(func(i int, d *initiator.Device) error {
		if !slices.Contains(on, luns[i].Target) {
			return nil
		}
		return d.SetCredentials(auth, mutual)
	})
}

// noUnit reports whether the target says of a LUN that it is not mapped: a volume that lacks one is
// lost as a whole.
func (l legs) noUnit() bool { return slices.ContainsFunc(l, (*initiator.Device).NoUnit) }

// served reports whether every LUN has a path that serves.
func (l legs) served() bool {
	return !slices.ContainsFunc(l, func(d *initiator.Device) bool {
		return !slices.ContainsFunc(d.Paths(), func(p initiator.PathStatus) bool { return p.Current })
	})
}

func (l legs) paths() (out []attach.Path) {
	for i, d := range l {
		for _, p := range d.Paths() {
			x := attach.Path{Leg: i, Session: p.Session, Portal: p.Portal, Connected: p.Connected, Current: p.Current, State: p.State}
			if p.LastError != nil && !p.Connected {
				x.LastError, x.Refused = p.LastError.Error(), initiator.CredentialsRefused(p.LastError)
			}
			out = append(out, x)
		}
	}
	return out
}
