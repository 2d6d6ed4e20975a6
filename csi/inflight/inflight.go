// Package inflight refuses a second operation on something while the first is under way. The CSI specification lets a
// plugin answer ABORTED then ("operation pending for volume"); the caller comes again with back-off.
package inflight

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Set holds what is under way. The zero value is ready.
type Set struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

// Start claims a key. The caller must call done; the error is ABORTED.
func (s *Set) Start(key string) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[key]; ok {
		return nil, status.Errorf(codes.Aborted, "an operation on %q is under way", key)
	}
	if s.keys == nil {
		s.keys = map[string]struct{}{}
	}
	s.keys[key] = struct{}{}
	return func() {
		s.mu.Lock()
		delete(s.keys, key)
		s.mu.Unlock()
	}, nil
}
