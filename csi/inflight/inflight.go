// Package inflight rejects a second operation on a key while the first is running. The CSI
// specification allows ABORTED for it ("operation pending for volume"); the caller retries with
// back-off.
package inflight

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Set has the keys of running operations. The zero value is ready to use.
type Set struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

// Start locks a key. The caller must call done; the error is ABORTED.
func (s *Set) Start(key string) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[key]; ok {
		return nil, status.Errorf(codes.Aborted, "another operation on %q is still running: retry later", key)
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
