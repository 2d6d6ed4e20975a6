package main

import (
	"context"
	"testing"
	"time"
)

func TestZZ(t *testing.T) {
	opt := options{dir: "/tmp", out: "/tmp/eout2", timeout: 3 * time.Minute, depth: 8, blocks: 4096}
	err := run(t.Context(), opt, "zz", 0, func(ctx context.Context, r *rig) error {
		for _, step := range []func(context.Context) error{r.stepBuild, r.stepPair, r.stepStorage, r.stepVolumes, r.stepLoad} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		if err := r.moveAll(ctx, second); err != nil {
			return err
		}
		for i := range 60 {
			for _, v := range r.vols {
				size := volumeSize + int64(i+1)*64<<20
				u, err := r.store.expand(ctx, v, size)
				if err != nil {
					return err
				}
				r.tell.Fact("%s %d", v.name, u)
			}
		}
		return nil
	})
	t.Log(err)
}
