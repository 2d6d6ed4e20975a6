package direct

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
)

// If a filesystem is published to many hosts at once, one is mapped to replay its log, and the
// others when that one is read-only.
func TestOneHostReplaysTheLog(t *testing.T) {
	_, b, ctx := start(t)
	v, err := b.CreateVolume(ctx, backend.CreateVolume{ID: b.VolumeID("v"), Name: "v", Size: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"iqn.2026-11.storage.gemel.test:a", "iqn.2026-11.storage.gemel.test:b", "iqn.2026-11.storage.gemel.test:c"}
	publish := func(host string) (attach.Attachment, error) {
		return b.Publish(ctx, backend.Publish{VolumeID: v.ID, HostIQN: host, ReadOnly: true, Replay: true})
	}
	// until retries as a CO does.
	until := func(ctx context.Context, host string) (attach.Attachment, error) {
		for {
			if a, err := publish(host); !errors.Is(err, backend.ErrUnavailable) || ctx.Err() != nil {
				return a, err
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	for range 5 {
		var mu sync.Mutex
		var wg sync.WaitGroup
		replays := 0
		for _, h := range hosts {
			wg.Go(func() {
				a, err := until(ctx, h)
				if err != nil || a.Replay == a.ReadOnly {
					t.Errorf("%+v, %v", a, err)
					return
				}
				if !a.Replay {
					return
				}
				mu.Lock()
				replays++
				mu.Unlock()
				got, err := b.GetVolume(ctx, v.ID)
				if err != nil || len(got.Writers) != 1 || got.Writers[0] != h {
					t.Errorf("during the replay: %+v, %v", got, err)
				}
				if again, err := until(ctx, h); err != nil || !again.Same(a) || !again.Replay {
					t.Errorf("again: %+v, %v", again, err)
				}
				if _, err := b.Reach(ctx, attach.Attachment{VolumeID: v.ID, HostIQN: "iqn.2026-11.storage.gemel.test:other"}, a.Generation); !errors.Is(err, attach.ErrInvalid) {
					t.Errorf("a report of another host: %v", err)
				}
				for _, replayed := range []uint64{0, a.Generation + 1} {
					if now, err := b.Reach(ctx, a, replayed); err != nil || !now.Same(a) || !now.Replay {
						t.Errorf("replayed %d: %+v, %v", replayed, now, err)
					}
				}
				now, err := b.Reach(ctx, a, a.Generation)
				// Another host may be mapped between the fence and the new mapping. This one
				// retries until that one is read-only; the volume is not published to it again.
				for errors.Is(err, attach.ErrFailed) && ctx.Err() == nil {
					time.Sleep(10 * time.Millisecond)
					now, err = b.Reach(ctx, a, a.Generation)
				}
				if err != nil || !now.ReadOnly || now.Replay || now.Generation <= a.Generation {
					t.Errorf("%+v, %v", now, err)
				}
				if again, err := b.Reach(ctx, a, a.Generation); err != nil || !again.Same(now) {
					t.Errorf("repeated: %+v, %v", again, err)
				}
			})
		}
		wg.Wait()
		got, err := b.GetVolume(ctx, v.ID)
		if err != nil || len(got.Hosts) != 3 || len(got.Writers) != 0 || replays < 1 {
			t.Errorf("%+v, %v; %d replays", got, err, replays)
		}
		if err := b.Unpublish(ctx, v.ID, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// A host that was unmapped after it had replayed the log waits while another host replays it, and
// is mapped when that one is read-only.
func TestHostWaitsForAnotherReplay(t *testing.T) {
	_, b, ctx := start(t)
	v, err := b.CreateVolume(ctx, backend.CreateVolume{ID: b.VolumeID("v"), Name: "v", Size: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(host string) attach.Attachment {
		t.Helper()
		a, err := b.Publish(ctx, backend.Publish{VolumeID: v.ID, HostIQN: host, ReadOnly: true, Replay: true})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := publish("iqn.2026-11.storage.gemel.test:a")
	// As Reach does before another host is mapped.
	if err := b.Unpublish(ctx, v.ID, first.HostIQN); err != nil {
		t.Fatal(err)
	}
	second := publish("iqn.2026-11.storage.gemel.test:b")
	if !first.Replay || !second.Replay {
		t.Fatalf("%+v, %+v", first, second)
	}
	if now, err := b.Reach(ctx, first, first.Generation); !errors.Is(err, attach.ErrFailed) {
		t.Errorf("while another host replays: %+v, %v", now, err)
	}
	for _, replayed := range []uint64{0, first.Generation + 1} {
		if now, err := b.Reach(ctx, first, replayed); !errors.Is(err, attach.ErrInvalid) {
			t.Errorf("replayed %d: %+v, %v", replayed, now, err)
		}
	}
	for _, a := range []attach.Attachment{second, first, first} {
		if now, err := b.Reach(ctx, a, a.Generation); err != nil || !now.ReadOnly || now.Replay || now.HostIQN != a.HostIQN {
			t.Errorf("%s: %+v, %v", a.HostIQN, now, err)
		}
	}
	got, err := b.GetVolume(ctx, v.ID)
	if err != nil || len(got.Hosts) != 2 || len(got.Writers) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
