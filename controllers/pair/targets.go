package pair

import (
	"context"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Targets gives the control API of single nodes: a pairconn.Directory.
type Targets interface {
	// Node returns the control API of one node. The connection is made on first use.
	Node(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error)
}

// callTime bounds a call to one node.
const callTime = 3 * time.Second
