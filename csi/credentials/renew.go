package credentials

import (
	"context"
	"log/slog"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Renewing: attachments are looked at every renewEvery; a pair whose credentials are refused still after that is asked for ever more rarely.
const (
	renewEvery = 5 * time.Second
	renewMost  = time.Minute
	renewLimit = 20 * time.Second // of the work for one pair
)

// Renew gives attachments whose credentials the targets refuse those that the operator has now, until the context ends. Credentials change
// when an administrator deletes them or when they were lost; sessions that are up go on, and the next login, after a target's
// restart say, would fail for ever.
func (k *Keeper) Renew(ctx context.Context, a attach.Attacher) {
	r := &renewal{Keeper: k, attacher: a, next: map[string]time.Time{}, pause: map[string]time.Duration{}}
	t := time.NewTicker(renewEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			r.look(ctx, now)
		}
	}
}

// renewal is the loop's memory: pairs that are to be left alone for a while.
type renewal struct {
	*Keeper
	attacher attach.Attacher
	next     map[string]time.Time
	pause    map[string]time.Duration
}

// look is one turn.
func (r *renewal) look(ctx context.Context, now time.Time) {
	refused, err := r.attacher.Refused(ctx)
	if err != nil {
		r.log.Warn("attachments cannot be looked at", "err", err)
		return
	}
	byPair := map[string][]string{}
	for _, a := range refused {
		if a.Pair != "" { // else the credentials came with the call, and nobody else has them
			byPair[a.Pair] = append(byPair[a.Pair], a.VolumeID)
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

func (r *renewal) renew(ctx context.Context, pair string, volumes []string, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	s, err := r.Fresh(ctx, pair)
	if err != nil {
		log.Warn("the targets refuse the credentials of attachments, and there are no others", "volumes", len(volumes), "err", err)
		return
	}
	for _, id := range volumes {
		if err := r.attacher.Renew(ctx, id, s.Auth, s.Mutual); err != nil {
			log.Warn("an attachment could not be given other credentials", "volume", id, "err", err)
			continue
		}
		r.given.Inc()
		log.Info("the targets refused the credentials of an attachment: it has others now", "volume", id, "chap", s.Auth != nil)
	}
}
