package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Sample is what a process has used and done since it started.
type Sample struct {
	At         time.Time
	CPU        time.Duration
	RSS        int64              // bytes
	Requests   map[string]float64 // to the API server, by method
	WholeLists map[string]float64 // by kind
}

// Look takes a sample of a process whose metrics are at an address.
func Look(ctx context.Context, pid int, metrics string) (s Sample, err error) {
	s = Sample{At: time.Now(), Requests: map[string]float64{}, WholeLists: map[string]float64{}}
	if s.CPU, s.RSS, err = used(pid); err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metrics+"/metrics", nil)
	if err != nil {
		return s, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer func() { _ = r.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bufio.NewReader(r.Body))
	if err != nil {
		return s, err
	}
	sum := func(into map[string]float64, family, label string) {
		for _, m := range families[family].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					into[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	sum(s.Requests, "rest_client_requests_total", "method")
	sum(s.WholeLists, "gemel_operator_whole_lists_total", "kind")
	return s, nil
}

// Writes is how many requests have changed something, or tried to.
func (s Sample) Writes() (n float64) {
	for method, x := range s.Requests {
		if method != http.MethodGet {
			n += x
		}
	}
	return n
}

// used is the CPU time of a process and its resident memory (proc(5)).
func used(pid int) (cpu time.Duration, rss int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 22 {
		return 0, 0, errors.New("/proc/PID/stat has too few fields")
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	pages, err3 := strconv.ParseInt(fields[21], 10, 64)
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	return time.Duration(user+system) * tick, pages * int64(os.Getpagesize()), errors.Join(err1, err2, err3)
}

// ReportPaths does what node plugins do: each worker reports that its LUNs have all paths.
func (f *Fleet) ReportPaths(ctx context.Context) error {
	var units v1alpha1.LogicalUnitList
	if err := f.Client.List(ctx, &units); err != nil {
		return err
	}
	luns := map[string]map[string]int32{} // by iSCSI name of the worker and of the pair
	for i := range units.Items {
		for _, h := range units.Items[i].Status.Hosts {
			if luns[h.IQN] == nil {
				luns[h.IQN] = map[string]int32{}
			}
			luns[h.IQN][h.TargetIQN]++
		}
	}
	_, err := Each(ctx, "reports of workers", f.Workers, 16, func(ctx context.Context, i int) error {
		h := &v1alpha1.Host{}
		if err := f.Client.Get(ctx, client.ObjectKey{Name: workerName(i)}, h); err != nil {
			return err
		}
		before := h.DeepCopy()
		h.Status.Worker, h.Status.Attached = nil, 0
		for target, n := range luns[HostIQN(i)] {
			h.Status.Attached += n
			h.Status.Worker = append(h.Status.Worker, v1alpha1.HostPaths{Target: target, LUNs: n, Portals: []v1alpha1.HostPortal{
				{Portal: "192.0.2.1:3260", Connected: n, Optimized: (n + 1) / 2, NonOptimized: n / 2}, {Portal: "192.0.2.2:3260", Connected: n, Optimized: n / 2, NonOptimized: (n + 1) / 2}}})
		}
		return f.Client.Status().Patch(ctx, h, client.MergeFrom(before))
	})
	return err
}
