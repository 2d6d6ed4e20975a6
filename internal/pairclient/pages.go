package pairclient

import (
	"context"
	"iter"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// pageSize is how many objects one call asks for; it is the target's own maximum.
const pageSize = 1000

// LUNs gives every LUN of a pair in uuid order, page by page. An error is the last thing that it
// gives.
func LUNs(ctx context.Context, c targetv1.TargetServiceClient) iter.Seq2[*targetv1.LUN, error] {
	return pages(func(after string) ([]*targetv1.LUN, string, error) {
		r, err := c.ListLUNs(ctx, &targetv1.ListLUNsRequest{AfterUuid: after, Limit: pageSize})
		return r.GetLuns(), r.GetNextAfterUuid(), err
	})
}

// Snapshots is LUNs for snapshots.
func Snapshots(ctx context.Context, c targetv1.TargetServiceClient) iter.Seq2[*targetv1.Snapshot, error] {
	return pages(func(after string) ([]*targetv1.Snapshot, string, error) {
		r, err := c.ListSnapshots(ctx, &targetv1.ListSnapshotsRequest{AfterUuid: after, Limit: pageSize})
		return r.GetSnapshots(), r.GetNextAfterUuid(), err
	})
}

func pages[T any](page func(after string) ([]*T, string, error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for after := ""; ; {
			list, next, err := page(after)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, x := range list {
				if !yield(x, nil) {
					return
				}
			}
			if after = next; after == "" {
				return
			}
		}
	}
}
