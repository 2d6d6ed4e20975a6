package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/internal/testkit/fleet"
)

const (
	gib      = 1 << 30
	capacity = 20 << 40 // of each pair
	size     = 10 * gib
	// The four pairs get 400 LUNs of 100 GiB. Half of 20 TiB is 102 of them for each pair; those
	// that are too many are refused.
	spreadPairs, spreadLUNs, spreadSize = 4, 400, 100 * gib
	overcommit                          = 50
)

// results of a run. A figure that has a limit says so in check.
type results struct {
	LUNs       int    `json:"luns"`
	Hosts      int    `json:"hosts"`
	Pairs      int    `json:"pairs"`
	ControlAPI string `json:"control_api"`
	Kubelets   string `json:"kubelets"`

	PairsReadyS   float64 `json:"pairs_ready_s"`
	CreatePerS    float64 `json:"create_per_s"`
	AttachPerS    float64 `json:"attach_per_s"`
	SpreadPercent float64 `json:"spread_percent"` // how far the fullest of four pairs is from the mean
	Refused       int     `json:"overcommit_refused"`
	RefusedText   string  `json:"overcommit_text"`
	DetachAttachS float64 `json:"detach_attach_2000_s"`
	DelayBesideS  float64 `json:"delay_beside_dead_pair_s"` // the longest of calls for other pairs, less that of the same without
	DeadAnswerS   float64 `json:"dead_pair_answer_s"`       // the longest call for the dead pair
	DeadAnswer    string  `json:"dead_pair_answer"`

	Idle    usage `json:"idle"`
	Growing usage `json:"growing"` // every LUN is written to: 1 % of its size a minute

	WholeLists map[string]float64 `json:"whole_lists"`             // since the start, of kinds that grow with LUNs or workers
	FullLists  float64            `json:"full_lists_in_reconcile"` // their sum while the cluster was idle
}

// usage is what the operator and the CSI controller take.
type usage struct {
	Seconds   float64 `json:"seconds"`
	Cores     float64 `json:"cores"`
	CSICores  float64 `json:"csi_cores"`
	WritesPS  float64 `json:"api_writes_per_s"`
	ReadsPS   float64 `json:"api_reads_per_s"`
	RSSMiB    int64   `json:"rss_mib"`
	CSIRSSMiB int64   `json:"csi_rss_mib"`
}

func (r *results) run(ctx context.Context, f *fleet.Fleet, o *options) error {
	keep, stop := context.WithCancel(ctx)
	defer stop()
	if err := f.AddWorkers(ctx); err != nil {
		return err
	}
	f.Keep(keep)
	fmt.Println("pairs")
	begun := time.Now()
	if err := f.AddCluster(ctx, "main", int32(o.pairs-spreadPairs), 0); err != nil {
		return err
	}
	if err := f.AddCluster(ctx, "four", spreadPairs, overcommit); err != nil {
		return err
	}
	r.PairsReadyS = time.Since(begun).Seconds()
	if err := r.spread(ctx, f); err != nil {
		return err
	}
	fmt.Println("LUNs")
	ids, err := r.create(ctx, f, o.luns-spreadLUNs)
	if err != nil {
		return err
	}
	if err := f.ReportPaths(ctx); err != nil {
		return err
	}
	steps := []func() error{
		func() (err error) { r.Idle, err = r.watch(ctx, f, o.idle, nil); return err },
		func() error { return r.moves(ctx, f, ids[:min(o.move, len(ids))]) },
		func() error { return r.besideDead(ctx, f, ids) },
		func() (err error) {
			r.Growing, err = r.watch(ctx, f, o.idle, func() { f.Pairs.Grow(size / 100 / 6) })
			return err
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// spread makes LUNs until one is refused.
func (r *results) spread(ctx context.Context, f *fleet.Fleet) error {
	fmt.Println("spread")
	const more = 40
	var mu sync.Mutex
	made, err := fleet.Each(ctx, "LUNs of four pairs", spreadLUNs, fleet.Callers, func(ctx context.Context, i int) error {
		_, err := f.Create(ctx, "four", fmt.Sprintf("four-%d", i), spreadSize)
		return err
	})
	if err != nil {
		return err
	}
	least, most := math.MaxInt, 0
	for pair, n := range f.Pairs.LUNs() {
		if strings.HasPrefix(pair, "four-") {
			least, most = min(least, n), max(most, n)
		}
	}
	mean := float64(made) / spreadPairs
	r.SpreadPercent = 100 * max(float64(most)-mean, mean-float64(least)) / mean
	_, err = fleet.Each(ctx, "LUNs that are too many", more, fleet.Callers, func(ctx context.Context, i int) error {
		_, err := f.Create(ctx, "four", fmt.Sprintf("more-%d", i), spreadSize)
		if status.Code(err) == codes.ResourceExhausted {
			mu.Lock()
			defer mu.Unlock()
			r.Refused++
			r.RefusedText = status.Convert(err).Message()
			return nil
		}
		return err
	})
	return err
}

func (r *results) create(ctx context.Context, f *fleet.Fleet, n int) ([]string, error) {
	ids := make([]string, n)
	begun := time.Now()
	if _, err := fleet.Each(ctx, "LUNs", n, fleet.Callers, func(ctx context.Context, i int) (err error) {
		return fleet.Retried(ctx, func(ctx context.Context) (err error) {
			ids[i], err = f.Create(ctx, "main", fmt.Sprintf("lun-%d", i), size)
			return err
		})
	}); err != nil {
		return nil, err
	}
	r.CreatePerS = float64(n) / time.Since(begun).Seconds()
	begun = time.Now()
	_, err := fleet.Each(ctx, "attachments", n, fleet.Callers, func(ctx context.Context, i int) error {
		return fleet.Retried(ctx, func(ctx context.Context) error { return f.Attach(ctx, ids[i], i%f.Workers) })
	})
	r.AttachPerS = float64(n) / time.Since(begun).Seconds()
	return ids, err
}

// moves detaches volumes, and attaches them to other workers.
func (r *results) moves(ctx context.Context, f *fleet.Fleet, ids []string) error {
	fmt.Println("detach and attach")
	begun := time.Now()
	_, err := fleet.Each(ctx, "moved", len(ids), fleet.Callers, func(ctx context.Context, i int) error {
		if err := fleet.Retried(ctx, func(ctx context.Context) error { return f.Detach(ctx, ids[i], i%f.Workers) }); err != nil {
			return err
		}
		return fleet.Retried(ctx, func(ctx context.Context) error { return f.Attach(ctx, ids[i], (i+1)%f.Workers) })
	})
	r.DetachAttachS = time.Since(begun).Seconds()
	return err
}

// besideDead measures calls for volumes of the other pairs while the sidecars repeat calls for a
// pair that does not answer.
func (r *results) besideDead(ctx context.Context, f *fleet.Fleet, ids []string) error {
	fmt.Println("a dead pair")
	const calls, callers = 200, 10
	longest := func(what string, from int) (float64, error) {
		var mu sync.Mutex
		var times []time.Duration
		_, err := fleet.Each(ctx, what, calls, callers, func(ctx context.Context, i int) error {
			k := (from + i) % len(ids)
			at := (k % f.Workers) + 7
			if !f.On(ctx, ids[k], "main-p0") {
				begun := time.Now()
				if err := f.Detach(ctx, ids[k], f.WorkerOf(ctx, ids[k])); err != nil {
					return err
				}
				if err := f.Attach(ctx, ids[k], at%f.Workers); err != nil {
					return err
				}
				mu.Lock()
				times = append(times, time.Since(begun))
				mu.Unlock()
			}
			return nil
		})
		return slices.Max(append(times, 0)).Seconds(), err
	}
	without, err := longest("calls", len(ids)/2)
	if err != nil {
		return err
	}
	end := f.Pairs.Silence("main-p0")
	dead, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for _, id := range ids {
		if n < fleet.Callers-callers && f.On(ctx, id, "main-p0") {
			n++
			worker := f.WorkerOf(ctx, id)
			all.Go(func() {
				_ = fleet.Retried(dead, func(ctx context.Context) error {
					begun := time.Now()
					err := f.Detach(ctx, id, worker)
					if dead.Err() == nil && err != nil {
						mu.Lock()
						defer mu.Unlock()
						if took := time.Since(begun).Seconds(); took > r.DeadAnswerS {
							r.DeadAnswerS, r.DeadAnswer = took, status.Code(err).String()+": "+status.Convert(err).Message()
						}
					}
					return err
				})
			})
		}
	}
	select { // the calls are under way, and the operator has noticed
	case <-time.After(15 * time.Second):
	case <-ctx.Done():
	}
	with, err := longest("calls beside a dead pair", len(ids)/2+calls)
	r.DelayBesideS = max(0, with-without)
	stop()
	end()
	all.Wait()
	return err
}

// watch watches the processes for a while, and has something happen every ten seconds.
func (r *results) watch(ctx context.Context, f *fleet.Fleet, d time.Duration, happens func()) (u usage, err error) {
	fmt.Println("watching for", d)
	select { // what was begun ends
	case <-time.After(d / 3):
	case <-ctx.Done():
		return u, ctx.Err()
	}
	look := func() (o, c fleet.Sample, err error) {
		if o, err = fleet.Look(ctx, f.Operator.Process.Pid, fleet.OperatorMetrics); err == nil {
			c, err = fleet.Look(ctx, f.Driver.Process.Pid, fleet.DriverMetrics)
		}
		return o, c, err
	}
	o1, c1, err := look()
	if err != nil {
		return u, err
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		if happens != nil {
			happens()
		}
		select {
		case <-time.After(min(10*time.Second, time.Until(end))):
		case <-ctx.Done():
			return u, ctx.Err()
		}
	}
	o2, c2, err := look()
	if err != nil {
		return u, err
	}
	s := o2.At.Sub(o1.At).Seconds()
	get := func(x fleet.Sample) float64 { return x.Requests["GET"] }
	u = usage{s, (o2.CPU - o1.CPU).Seconds() / s, (c2.CPU - c1.CPU).Seconds() / s, (o2.Writes() - o1.Writes() + c2.Writes() - c1.Writes()) / s, (get(o2) - get(o1) + get(c2) - get(c1)) / s, o2.RSS >> 20, c2.RSS >> 20}
	r.WholeLists = o2.WholeLists
	for kind, n := range o2.WholeLists {
		if many[kind] {
			r.FullLists += n - o1.WholeLists[kind]
		}
	}
	return u, nil
}

// many are the kinds of which there are as many as LUNs or workers.
var many = map[string]bool{"LogicalUnit": true, "LogicalUnitSnapshot": true, "Host": true, "Secret": true, "Node": true, "PersistentVolume": true, "PersistentVolumeClaim": true, "Pod": true}
