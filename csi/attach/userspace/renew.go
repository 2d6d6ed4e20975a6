package userspace

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/attach/userspace/holder"
)

// askLimit bounds a request to one holder, which answers from memory.
const askLimit = 2 * time.Second

// Refused implements attach.Attacher. It only calls the holders, because it is called every few
// seconds.
func (a *Attacher) Refused(ctx context.Context) (out []attach.Refusal, err error) {
	ids, err := a.Attached()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		dir, err := a.folder(id)
		if err != nil {
			continue
		}
		r, err := loadRecord(dir)
		if err != nil || r == nil {
			continue
		}
		once, cancel := context.WithTimeout(ctx, askLimit)
		ans, err := holder.Ask(once, dir, holder.Request{Op: holder.OpStatus})
		cancel()
		if err != nil {
			continue
		}
		targets, luns := r.Attachment.Targets(), r.Attachment.LUNs()
		for _, p := range ans.Paths {
			if !p.Refused || p.Leg >= len(luns) {
				continue
			}
			if x := (attach.Refusal{VolumeID: id, Pair: targets[luns[p.Leg].Target].Pair}); !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	return out, nil
}

// Renew implements attach.Attacher. The holder keeps the credentials in memory, like the initial
// ones.
func (a *Attacher) Renew(ctx context.Context, r attach.Refusal, auth, mutual *attach.CHAP) error {
	dir, err := a.folder(r.VolumeID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if _, err := holder.Ask(ctx, dir, holder.Request{Op: holder.OpRenew, Pair: r.Pair, Auth: auth, MutualAuth: mutual}); err != nil {
		return fmt.Errorf("renew the credentials of volume %s: %w", r.VolumeID, err)
	}
	return nil
}
