package nodesim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// crowd has several callers make and map LUNs at the same time, so that they share entries of the
// log, and remove them again. What was made last is there at the end of the history.
func (c *caller) crowd(rng *rand.Rand) {
	for n := 0; !c.w.isIdle(); n++ {
		c.w.pause(rng, 200*time.Millisecond, 1500*time.Millisecond)
		luns := make([]*lun, 2+rng.IntN(5))
		var wg sync.WaitGroup
		for i := range luns {
			own := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
			wg.Go(func() { luns[i] = c.member(own, fmt.Sprintf("crowd-%d-%d", n, i)) })
		}
		wg.Wait()
		luns = slices.DeleteFunc(luns, func(l *lun) bool { return l == nil })
		c.w.keep(luns)
		if c.w.isIdle() {
			return
		}
		c.w.pause(rng, 0, 500*time.Millisecond)
		c.w.keep(nil)
		for _, l := range luns {
			own := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
			wg.Go(func() { c.remove(own, l) })
		}
		wg.Wait()
	}
}

// member makes a LUN of a crowd; nil, if there was no room for it, or no answer.
func (c *caller) member(rng *rand.Rand, name string) *lun {
	l, err := c.make(rng, name, "", 1<<20, hostName("crowd1"), hostName("crowd2"))
	switch {
	case err == nil:
		return l
	case status.Code(err) == codes.ResourceExhausted && c.w.roomless.Load() || c.w.gaveUp():
	default:
		c.w.fail("%s: %v", name, err)
	}
	return nil
}

func (c *caller) remove(rng *rand.Rand, l *lun) {
	_, err := call(c, rng, "unmap "+l.name, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.UnmapHostResponse, error) {
		return t.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: l.id})
	})
	if err == nil {
		_, err = call(c, rng, "delete "+l.name, func(ctx context.Context, t targetv1.TargetServiceClient) (*targetv1.DeleteLUNResponse, error) {
			return t.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: l.id})
		})
	}
	if err != nil && !c.w.gaveUp() {
		c.w.fail("removal of %s: %v", l.name, err)
	}
}

// keep notes which LUNs of a crowd are there.
func (w *world) keep(luns []*lun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = luns
}

// compareLists looks at the LUNs and mappings that both nodes have: the same, and whatever a caller
// was told that it is there.
func (w *world) compareLists() {
	var lists [2]string
	for i, client := range w.caller.clients {
		ctx, cancel := context.WithTimeout(context.Background(), callTry)
		got, err := client.ListLUNs(ctx, &targetv1.ListLUNsRequest{}, grpc.WaitForReady(true)) // the node may just have started
		cancel()
		if err != nil {
			w.fail("node %s lists no LUNs: %v", name(i), err)
			return
		}
		var lines []string
		for _, l := range got.Luns {
			var maps []string
			for _, m := range l.Mappings {
				maps = append(maps, fmt.Sprintf("%s as %d", m.HostIqn, m.Lun))
			}
			slices.Sort(maps)
			lines = append(lines, fmt.Sprintf("%s %s, %d bytes: %s", l.Uuid, l.Name, l.SizeBytes, strings.Join(maps, ", ")))
		}
		slices.Sort(lines)
		lists[i] = strings.Join(lines, "\n")
	}
	if lists[0] != lists[1] {
		w.fail("node a has\n%s\nnode b has\n%s", lists[0], lists[1])
	}
	w.mu.Lock()
	kept := w.kept
	w.mu.Unlock()
	for _, l := range kept {
		for _, host := range []string{hostName("crowd1"), hostName("crowd2")} {
			if want := fmt.Sprintf("%s as %d", host, l.numberOf(host)); !slices.ContainsFunc(strings.Split(lists[0], "\n"), func(line string) bool {
				return strings.HasPrefix(line, l.id+" ") && strings.Contains(line, want)
			}) {
				w.fail("%s, which was made and mapped, is not there: no %q in\n%s", l.name, want, lists[0])
			}
		}
	}
}
