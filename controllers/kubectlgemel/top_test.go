package kubectlgemel

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// busy is a pair whose nodes count: each look is a second after the one before.
type busy struct {
	looks map[string]int
	down  map[string]bool
	again string // the node that is started again between the looks
	idle  bool
	page  int                             // LUNs of one answer; 0: all
	of    func() map[string]client.Object // the objects; default world
}

type busyNode struct {
	targetv1.TargetServiceClient
	b    *busy
	node string
}

func work(kind, way string, n, size, us uint64, bucket int) *targetv1.Work {
	h := make([]uint64, 20)
	h[bucket] = n
	return &targetv1.Work{Kind: kind, Way: way, Operations: n, Bytes: n * size, TookUs: n * us, Histogram: h}
}

// A node whose LUNs have done nothing is shown, with zeros.
func TestTopShowsIdleNodes(t *testing.T) {
	rows, text, err := (&busy{idle: true}).run(t, &Top{Of: "nodes"})
	if err != nil || len(rows) != 3 || strings.Join(rows[1][:6], " ") != "main-p0 a 0 0 0 0" || rows[1][len(rows[1])-1] != "56%" {
		t.Errorf("%v\n%s", err, text)
	}
	if rows, text, err = (&busy{idle: true}).run(t, &Top{Of: "luns"}); err != nil || len(rows) != 2 || !strings.Contains(text, "no host has used a LUN") {
		t.Errorf("%v\n%s", err, text)
	}
}

// GetWork of a pair whose LUN one is owned by a and read by hosts at both nodes, and whose LUN two
// is owned by b and written.
func (n *busyNode) GetWork(_ context.Context, req *targetv1.GetWorkRequest, _ ...grpc.CallOption) (*targetv1.GetWorkResponse, error) {
	if n.b.down[n.node] {
		return nil, errors.New("it is down")
	}
	if req.AfterUuid == "" {
		n.b.looks[n.node]++
	}
	k := uint64(n.b.looks[n.node])
	if n.b.idle {
		return &targetv1.GetWorkResponse{Node: n.node, Incarnation: 7, AtUs: k * 1e6}, nil
	}
	r := &targetv1.GetWorkResponse{Node: n.node, Incarnation: 7, AtUs: k * 1e6}
	if n.b.again == n.node && k > 1 {
		r.Incarnation, k = 8, 1
	}
	one, two := &targetv1.LUNWork{Uuid: "u1", Name: "one", Owner: "a"}, &targetv1.LUNWork{Uuid: "u2", Name: "two", Owner: "b"}
	if n.node == "a" {
		one.Work = []*targetv1.Work{work("read", "own", 300*k, 4096, 200, 3), work("read", "remote", 100*k, 4096, 100, 2)}
		two.Work = []*targetv1.Work{work("other", "own", 2*k, 0, 50, 1)}
	} else {
		one.Work = []*targetv1.Work{work("read", "forwarded", 100*k, 4096, 600, 5)}
		two.Work = []*targetv1.Work{work("write", "own", 50*k, 65536, 5000, 8)}
	}
	r.Luns = []*targetv1.LUNWork{one, two}
	if n.b.page == 1 && req.AfterUuid == "" {
		r.Luns, r.NextAfterUuid = r.Luns[:1], "u1"
	} else if n.b.page == 1 {
		r.Luns = r.Luns[1:]
	}
	return r, nil
}

func (n *busyNode) GetStatus(context.Context, *targetv1.GetStatusRequest, ...grpc.CallOption) (*targetv1.Status, error) {
	return &targetv1.Status{Ownership: &targetv1.Ownership{Decides: n.node == "b", Use: []float64{0.56, 0.13}, Even: "no move pays"}}, nil
}

func (b *busy) connect(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, func(), error) {
	return &busyNode{b: b, node: node}, func() {}, nil
}

func (b *busy) run(t *testing.T, c *Top, names ...string) ([][]string, string, error) {
	t.Helper()
	var out bytes.Buffer
	b.looks = map[string]int{}
	if c.Sort == "" {
		c.Sort = "operations"
	}
	objects := world()
	if b.of != nil {
		objects = b.of()
	}
	c.Client, c.Control, c.Out, c.Interval = clientOf(objects), b.connect, &out, minInterval
	err := c.Run(t.Context(), names...)
	var rows [][]string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Fields(line))
	}
	return rows, out.String(), err
}

func TestTopShowsRatesOfBothNodes(t *testing.T) {
	for _, page := range []int{0, 1} {
		rows, text, err := (&busy{page: page}).run(t, &Top{Of: "luns"})
		if err != nil || len(rows) != 3 {
			t.Fatalf("%v\n%s", err, text)
		}
		want := [][]string{
			{"one", "main-p0", "a", "400", "0", "0", "1.6", "MiB", "300µs", "<1.02ms", "25%"},
			{"two", "main-p0", "b", "0", "50", "2", "3.1", "MiB", "4.81ms", "<8.19ms", "0%"},
		}
		for i, w := range want {
			if strings.Join(rows[i+1], " ") != strings.Join(w, " ") {
				t.Errorf("want %v\n%s", w, text)
			}
		}
	}
}

func TestTopShowsNodesAndPairs(t *testing.T) {
	rows, text, err := (&busy{}).run(t, &Top{Of: "nodes"}, "main-p0")
	if err != nil || len(rows) != 3 || strings.Join(rows[1][:6], " ") != "main-p0 a 402 300 0 2" || strings.Join(rows[2][:6], " ") != "main-p0 b 50 100 50 0" ||
		rows[1][len(rows[1])-1] != "56%" || rows[2][len(rows[2])-1] != "13%" {
		t.Errorf("%v\n%s", err, text)
	}
	rows, text, err = (&busy{}).run(t, &Top{Of: "pairs"})
	if err != nil || len(rows) != 3 || strings.Join(rows[1][:4], " ") != "main-p0 400 50 2" || !strings.Contains(text, "main-p0: no work is evened: no move pays\n") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestTopSortsAndCuts(t *testing.T) {
	for by, first := range map[string]string{"operations": "one", "bytes": "two", "latency": "two", "forwarded": "one"} {
		rows, text, err := (&busy{}).run(t, &Top{Of: "luns", Sort: by, Limit: 1})
		if err != nil || len(rows) != 3 || rows[1][0] != first || !strings.Contains(text, "1 more: use --limit") {
			t.Errorf("--sort %s: %v\n%s", by, err, text)
		}
	}
}

// A node that was started again counts from zero; one that does not answer is named, and the other
// one is shown.
func TestTopWithoutOneNode(t *testing.T) {
	rows, text, err := (&busy{again: "b"}).run(t, &Top{Of: "luns"})
	if err != nil || rows[1][3] != "400" {
		t.Errorf("%v\n%s", err, text)
	}
	rows, text, err = (&busy{down: map[string]bool{"b": true}}).run(t, &Top{Of: "luns"})
	if err != nil || !strings.Contains(text, "node b of main-p0 does not answer") || len(rows) != 4 || rows[2][3] != "300" {
		t.Errorf("%v\n%s", err, text)
	}
	if _, text, err = (&busy{down: map[string]bool{"a": true, "b": true}}).run(t, &Top{Of: "luns"}); !errors.Is(err, ErrTop) {
		t.Errorf("%v\n%s", err, text)
	}
	if _, _, err = (&busy{}).run(t, &Top{Of: "luns"}, "other"); !errors.Is(err, ErrTop) || !strings.Contains(err.Error(), `TargetPair "other" does not exist`) {
		t.Error(err)
	}
}

func TestTopWatchesUntilItIsInterrupted(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	b := &busy{looks: map[string]int{}}
	c := &Top{Of: "pairs", Sort: "operations", Client: clientOf(world()), Control: b.connect, Out: &out, Interval: minInterval, Watch: true}
	if err := c.Run(ctx); err != nil || strings.Count(out.String(), "PAIR") < 2 {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestTopRefusesWhatItCannotShow(t *testing.T) {
	for want, c := range map[string]*Top{
		`cannot show "disks"`: {Of: "disks", Sort: "bytes", Interval: time.Second},
		`--sort "size"`:       {Of: "luns", Sort: "size", Interval: time.Second},
		"--limit -1":          {Of: "luns", Sort: "bytes", Limit: -1, Interval: time.Second},
		"--interval 1ms":      {Of: "luns", Sort: "bytes", Interval: time.Millisecond},
	} {
		if err := c.validate(); !errors.Is(err, ErrTop) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
