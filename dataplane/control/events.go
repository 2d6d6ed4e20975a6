package control

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// eventQueue is how many events a watcher may be behind.
const eventQueue = 256

// Events hands events to watchers; a slow one loses events rather than holding anything up. Its
// zero value is ready.
type Events struct {
	mu   sync.Mutex
	subs map[chan *targetv1.Event]struct{}
}

// Send never blocks.
func (b *Events) Send(e *targetv1.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.subs {
		select {
		case c <- e:
		default:
		}
	}
}

// subscribe begins a watch, which ends when the function is called.
func (b *Events) subscribe() (<-chan *targetv1.Event, func()) {
	c := make(chan *targetv1.Event, eventQueue)
	b.mu.Lock()
	if b.subs == nil {
		b.subs = map[chan *targetv1.Event]struct{}{}
	}
	b.subs[c] = struct{}{}
	b.mu.Unlock()
	return c, func() {
		b.mu.Lock()
		delete(b.subs, c)
		b.mu.Unlock()
	}
}

// Watch streams events, the present status first.
func (c *server) Watch(_ *targetv1.WatchRequest, s grpc.ServerStreamingServer[targetv1.Event]) error {
	events, stop := c.cfg.Events.subscribe()
	defer stop()
	if err := s.Send(&targetv1.Event{Time: timestamppb.Now(), Kind: "status", Status: c.n.Status(s.Context())}); err != nil {
		return err
	}
	for {
		select {
		case e := <-events:
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		case <-c.cfg.Done:
			return status.Error(codes.Unavailable, "the node is stopping")
		}
	}
}
