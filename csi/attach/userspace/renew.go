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
func (a *Attacher) Refused(ctx context.Context) (out []attach.Attachment, err error) {
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
		if err == nil && slices.ContainsFunc(ans.Paths, func(p attach.Path) bool { return p.Refused }) {
			out = append(out, r.Attachment)
		}
	}
	return out, nil
}

// Renew implements attach.Attacher. The holder keeps the credentials in memory, like the initial
// ones.
func (a *Attacher) Renew(ctx context.Context, volumeID string, auth, mutual *attach.CHAP) error {
	dir, err := a.folder(volumeID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if _, err := holder.Ask(ctx, dir, holder.Request{Op: holder.OpRenew, Auth: auth, MutualAuth: mutual}); err != nil {
		return fmt.Errorf("renew the credentials of volume %s: %w", volumeID, err)
	}
	return nil
}
