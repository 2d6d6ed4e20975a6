package main

import (
	"context"

	"github.com/gemel-storage/gemel/hack/bench/rig"
)

func (b *bench) startQSD(ctx context.Context) (*rig.Served, error) { return nil, errPeer }
