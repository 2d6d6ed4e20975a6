package credentials

import (
	"context"
	"log/slog"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Attachments are checked every renewEvery; if the credentials of a pair are still rejected
// afterwards, the interval for the pair increases.
const (
	renewEvery = 5 * time.Second
	renewMost  = time.Minute
	renewLimit = 20 * time.Second // for one pair
)

// Renew updates the credentials of attachments that the targets reject to those of the operator,
// until the context ends. Credentials change when an administrator deletes them or when they were
// lost; established sessions continue, but the next login, for example after a restart of a target,
// would always fail.
func (k *Keeper) Renew(ctx context.Context, a attach.Attacher) {
	r := &renewal{Keeper: k, attacher: a, next: map[string]time.Time{}, pause: map[string]time.Duration{}}
	t := time.NewTicker(renewEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			r.reconcile(ctx, now)
		}
	}
}

// renewal is the state of the loop: when to retry which pair.
type renewal struct {
	*Keeper
	attacher attach.Attacher
	next     map[string]time.Time
	pause    map[string]time.Duration
}

// reconcile checks all attachments once.
func (r *renewal) reconcile(ctx context.Context, now time.Time) {
	refused, err := r.attacher.Refused(ctx)
	if err != nil {
		r.log.Warn("cannot list attachments with rejected credentials", "err", err)
		return
	}
	byPair := map[string][]attach.Refusal{}
	for _, a := range refused {
		if a.Pair != "" { // otherwise the credentials came with the call, and there is no other source
			byPair[a.Pair] = append(byPair[a.Pair], a)
		}
	}
	for pair := range r.next {
		if byPair[pair] == nil {
			delete(r.next, pair)
			delete(r.pause, pair)
		}
	}
	for pair, volumes := range byPair {
		if now.Before(r.next[pair]) {
			continue
		}
		r.pause[pair] = min(max(2*r.pause[pair], renewEvery), renewMost)
		r.next[pair] = now.Add(r.pause[pair])
		r.renew(ctx, pair, volumes, r.log.With("pair", pair))
	}
}

func (r *renewal) renew(ctx context.Context, pair string, volumes []attach.Refusal, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	s, err := r.Fresh(ctx, pair)
	if err != nil {
		log.Warn("the targets reject the credentials of attachments, and the operator returns no others", "volumes", len(volumes), "err", err)
		return
	}
	for _, v := range volumes {
		if err := r.attacher.Renew(ctx, v, s.Auth, s.Mutual); err != nil {
			log.Warn("cannot renew the credentials of an attachment", "volume", v.VolumeID, "err", err)
			continue
		}
		r.given.Inc()
		log.Info("renewed the credentials of an attachment, which the targets had rejected", "volume", v.VolumeID, "chap", s.Auth != nil)
	}
}
