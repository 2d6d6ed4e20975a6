package pair

import (
	"context"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Targets are the control APIs of the nodes of pairs, each by itself: a pairconn.Directory.
type Targets interface {
	// Node gives the control API of one node. The connection is made when it is used.
	Node(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error)
}

// callTime bounds a call to one node.
const callTime = 3 * time.Second
