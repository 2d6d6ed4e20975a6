package control

import (
	"bytes"
	"context"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Limits of a profile.
const (
	profileSeconds    = 10 // by default
	maxProfileSeconds = 60
	profilePart       = 64 << 10 // bytes of a message
	// mutexFraction and blockRate (ns) are what is sampled while a profile of waits is taken.
	mutexFraction = 20
	blockRate     = 10_000
)

// timed are the profiles of what happens in a time; the others are of the moment.
var timed = map[string]func(ctx context.Context, d time.Duration, to *bytes.Buffer) error{
	"cpu": func(ctx context.Context, d time.Duration, to *bytes.Buffer) error {
		if err := pprof.StartCPUProfile(to); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error()+": try again when it has ended")
		}
		wait(ctx, d)
		pprof.StopCPUProfile()
		return nil
	},
	"mutex": func(ctx context.Context, d time.Duration, to *bytes.Buffer) error {
		if old := runtime.SetMutexProfileFraction(-1); old == 0 { // else the node collects them anyway
			runtime.SetMutexProfileFraction(mutexFraction)
			defer runtime.SetMutexProfileFraction(0)
		}
		wait(ctx, d)
		return pprof.Lookup("mutex").WriteTo(to, 0)
	},
	"block": func(ctx context.Context, d time.Duration, to *bytes.Buffer) error {
		runtime.SetBlockProfileRate(blockRate)
		defer runtime.SetBlockProfileRate(0)
		wait(ctx, d)
		return pprof.Lookup("block").WriteTo(to, 0)
	},
}

// moments are the profiles of a moment.
var moments = []string{"allocs", "goroutine", "heap"}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// profiling lets one timed profile be taken at a time: their rates are the process's.
var profiling sync.Mutex

// Profile streams a profile of the process.
func (c *server) Profile(req *targetv1.ProfileRequest, s grpc.ServerStreamingServer[targetv1.ProfilePart]) error {
	var out bytes.Buffer
	take := timed[req.Kind]
	switch at := pprof.Lookup(req.Kind); {
	case take == nil && !slices.Contains(moments, req.Kind):
		return status.Errorf(codes.InvalidArgument, "kind %q: use one of cpu, mutex, block, %s", req.Kind, strings.Join(moments, ", "))
	case req.Seconds > maxProfileSeconds:
		return status.Errorf(codes.InvalidArgument, "seconds %d: at most %d", req.Seconds, maxProfileSeconds)
	case take == nil && req.Seconds > 0:
		return status.Errorf(codes.InvalidArgument, "seconds %d: a profile of kind %s is of one moment; leave seconds out", req.Seconds, req.Kind)
	case take == nil:
		if err := at.WriteTo(&out, 0); err != nil {
			return err
		}
	case !profiling.TryLock():
		return status.Error(codes.FailedPrecondition, "another profile is being taken: try again when it has ended")
	default:
		err := c.takeProfile(s.Context(), take, req.Seconds, &out)
		profiling.Unlock()
		if err != nil {
			return err
		}
	}
	for out.Len() > 0 {
		if err := s.Send(&targetv1.ProfilePart{Data: out.Next(profilePart)}); err != nil {
			return err
		}
	}
	return nil
}

// takeProfile ends early when the node stops.
func (c *server) takeProfile(ctx context.Context, take func(context.Context, time.Duration, *bytes.Buffer) error, seconds uint32, to *bytes.Buffer) error {
	if seconds == 0 {
		seconds = profileSeconds
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var stop sync.WaitGroup
	defer stop.Wait()
	defer cancel()
	stop.Go(func() {
		select {
		case <-c.cfg.Done:
			cancel()
		case <-ctx.Done():
		}
	})
	return take(ctx, time.Duration(seconds)*time.Second, to)
}
