// Package arbiter is where a pair's record lives (R2): an interface with compare-and-swap, and the
// implementation that needs no cluster; package lease is the one on Kubernetes. Reads are
// linearizable, never from a cache.
package arbiter

import (
	"context"
	"errors"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Arbiter keeps one record. Any error other than ErrConflict and ErrNotFound leaves the outcome of
// a CompareAndSwap unknown: it may have happened, or happen later.
type Arbiter interface {
	// Get returns the record and its version, or ErrNotFound.
	Get(ctx context.Context) (pair.Record, string, error)
	// CompareAndSwap writes rec if the version is still the given one; "" means that there is no
	// record yet. It returns the new version, or ErrConflict.
	CompareAndSwap(ctx context.Context, version string, rec pair.Record) (string, error)
}

// Errors with a known outcome.
var (
	ErrNotFound = errors.New("no record")
	ErrConflict = errors.New("the record has another version")
)
