package kubectlgemel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/internal/human"
)

// Top shows what hosts do with LUNs at present: per LUN, per volume, per node or per pair.
type Top struct {
	Client  client.Client
	Control Control
	Out     io.Writer

	Of       string        // luns, volumes, nodes or pairs
	Sort     string        // operations, bytes, latency or forwarded
	Limit    int           // rows at most; 0: all
	Interval time.Duration // over which rates are measured
	Watch    bool          // again and again, until the context ends

	wholes map[string]string // the striped volume of a LUN, by names; for volumes only
}

// ErrTop: the load cannot be shown; the text says why.
var ErrTop = errors.New("top")

// minInterval of a measurement: a shorter one shows noise.
const minInterval = 100 * time.Millisecond

func (f *flags) topCommand() *cobra.Command {
	t := &Top{Of: "luns"}
	var pairs []string
	cmd := &cobra.Command{Use: "top [luns|volumes|nodes|pairs]", Short: "Show the busiest LUNs, volumes, nodes or pairs",
		Long: `Top reads the counters of the target nodes twice and shows the rates between the two: commands and bytes per second, the mean time
from the arrival of a command at a node to its status, the limit under which 99 % of these times are, and the share of the bytes that
hosts sent to the node that does not own the LUN. A command counts at the node at which its host is logged in; EXECUTED counts it
at the owner. Top volumes shows a striped volume as one, with all of its LUNs. CPU of a node is the part of its CPUs that it uses,
over five minutes; top pairs says why no work is evened between the nodes at present.

It connects to the targets through the API server, and needs permission to read the Secret gemel-CLUSTER-control and to forward
ports of pods.`,
		Args: cobra.MaximumNArgs(1), ValidArgs: []string{"luns", "volumes", "nodes", "pairs"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				t.Of = args[0]
			}
			if err := t.validate(); err != nil {
				return err
			}
			var err error
			if t.Control, t.Client, err = f.control(); err != nil {
				return err
			}
			t.Out = cmd.OutOrStdout()
			return t.Run(cmd.Context(), pairs...)
		}}
	cmd.Flags().StringVar(&t.Sort, "sort", "operations", "what comes first: operations, bytes, latency or forwarded")
	cmd.Flags().IntVar(&t.Limit, "limit", 20, "maximum number of rows; 0: all")
	cmd.Flags().DurationVar(&t.Interval, "interval", 2*time.Second, "time over which the rates are measured")
	cmd.Flags().BoolVar(&t.Watch, "watch", false, "repeat until interrupted")
	cmd.Flags().StringSliceVar(&pairs, "pair", nil, "only these TargetPairs (default: all)")
	return cmd
}

func (t *Top) validate() error {
	switch {
	case !slices.Contains([]string{"luns", "volumes", "nodes", "pairs"}, t.Of):
		return fmt.Errorf("%w: cannot show %q: use luns, volumes, nodes or pairs", ErrTop, t.Of)
	case !slices.Contains([]string{"operations", "bytes", "latency", "forwarded"}, t.Sort):
		return fmt.Errorf("%w: --sort %q: use operations, bytes, latency or forwarded", ErrTop, t.Sort)
	case t.Limit < 0:
		return fmt.Errorf("%w: --limit %d: use 0 for all rows, or a positive number", ErrTop, t.Limit)
	case t.Interval < minInterval:
		return fmt.Errorf("%w: --interval %v: use %v or more", ErrTop, t.Interval, minInterval)
	}
	return nil
}

// Run shows the load of the pairs named, or of all.
func (t *Top) Run(ctx context.Context, names ...string) error {
	list, err := pairsNamed(ctx, t.Client, names)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTop, err)
	}
	if t.Of == "volumes" {
		if t.wholes, err = wholes(ctx, t.Client); err != nil {
			return fmt.Errorf("%w: %w", ErrTop, err)
		}
	}
	all := make([]*nodes, len(list))
	for i, p := range list {
		all[i] = &nodes{control: t.Control, pair: p}
		defer all[i].close()
	}
	tick := time.NewTicker(t.Interval)
	defer tick.Stop()
	before := t.read(ctx, all)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			if t.Watch {
				return nil
			}
			return fmt.Errorf("%w: %w", ErrTop, ctx.Err())
		}
		now := t.read(ctx, all)
		if ctx.Err() != nil && t.Watch {
			return nil
		}
		if err := t.print(before, now); err != nil || !t.Watch {
			return err
		}
		fmt.Fprintln(t.Out)
		before = now
	}
}

// read asks every node for its counters. A node that does not answer has only an error.
func (t *Top) read(ctx context.Context, all []*nodes) (out []sample) {
	for _, n := range all {
		for _, node := range pair.Nodes {
			s := sample{pair: n.pair.Name, node: node}
			if err := s.read(ctx, n); err != nil {
				n.drop(node)
				s = sample{pair: n.pair.Name, node: node, err: err}
			} else if t.Of == "nodes" || t.Of == "pairs" {
				s.readDecisions(ctx, n)
			}
			out = append(out, s)
		}
	}
	return out
}

// row is one line of the table.
type row struct {
	name, pair string
	owners     map[string]string // of its LUNs
	rate
}

func (r *row) owns(lun, owner string) {
	if r.owners == nil {
		r.owners = map[string]string{}
	}
	r.owners[lun] = owner
}

// owner of the LUNs, or how many each node owns.
func (r *row) owner() string {
	count := map[string]int{}
	for _, o := range r.owners {
		count[o]++
	}
	var list []string
	for _, o := range slices.Sorted(maps.Keys(count)) {
		if len(r.owners) == 1 {
			return o
		}
		list = append(list, fmt.Sprintf("%s:%d", o, count[o]))
	}
	return cmp.Or(strings.Join(list, ","), "-")
}

func (t *Top) print(before, now []sample) error {
	rows := map[string]*row{}
	var order []string
	answered := 0
	var silent []error
	for i := range now {
		s := &now[i]
		if s.err == nil {
			answered++
		}
		if err := cmp.Or(s.err, before[i].err); err != nil {
			silent = append(silent, fmt.Errorf("node %s of %s does not answer, and is not counted: %w", s.node, s.pair, err))
			continue
		}
		list := s.since(&before[i])
		if t.Of == "nodes" || t.Of == "pairs" {
			list = append(list, delta{}) // a node without work has a line as well
		}
		for _, d := range list {
			key, r := d.key(t.Of, s, t.wholes)
			if rows[key] == nil {
				rows[key] = r
				order = append(order, key)
			}
			rows[key].add(&d.rate)
			if d.owner != "" {
				rows[key].owns(d.uuid, d.owner)
			}
		}
	}
	for _, err := range silent {
		fmt.Fprintln(t.Out, err)
	}
	if answered == 0 {
		return fmt.Errorf("%w: no target node answers", ErrTop)
	}
	list := make([]*row, 0, len(order))
	for _, k := range order {
		list = append(list, rows[k])
	}
	slices.SortStableFunc(list, func(x, y *row) int {
		return cmp.Or(cmp.Compare(y.by(t.Sort), x.by(t.Sort)), cmp.Compare(x.pair, y.pair), cmp.Compare(x.name, y.name))
	})
	left := 0
	if t.Limit > 0 && len(list) > t.Limit {
		left, list = len(list)-t.Limit, list[:t.Limit]
	}
	return t.table(list, left, chairs(now))
}

// chairs are what the deciding node of each pair knows.
func chairs(now []sample) map[string]*targetv1.Ownership {
	out := map[string]*targetv1.Ownership{}
	for i := range now {
		if s := &now[i]; s.decides != nil {
			out[s.pair] = s.decides
		}
	}
	return out
}

// used is the part of its CPUs that a node uses, over five minutes.
func used(o *targetv1.Ownership, node string) string {
	if i := slices.Index(pair.Nodes[:], node); i >= 0 && i < len(o.GetUse()) {
		return fmt.Sprintf("%.0f%%", 100*o.Use[i])
	}
	return "-"
}

func (t *Top) table(list []*row, left int, chairs map[string]*targetv1.Ownership) error {
	w := tabwriter.NewWriter(t.Out, 0, 0, 3, ' ', 0)
	figures := "READS/s\tWRITES/s\tOTHER/s\tBYTES/s\tMEAN\t99%\tFORWARDED"
	switch t.Of {
	case "luns":
		fmt.Fprintln(w, "LUN\tPAIR\tOWNER\t"+figures)
	case "volumes":
		fmt.Fprintln(w, "VOLUME\tPAIR\tLUNS\tOWNER\t"+figures)
	case "nodes":
		fmt.Fprintln(w, "PAIR\tNODE\tEXECUTED/s\t"+figures+"\tCPU")
	default:
		fmt.Fprintln(w, "PAIR\t"+figures)
	}
	for _, r := range list {
		switch t.Of {
		case "luns":
			fmt.Fprintf(w, "%s\t%s\t%s\t", r.name, r.pair, r.owner())
		case "volumes":
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t", r.name, r.pair, len(r.owners), r.owner())
		case "nodes":
			fmt.Fprintf(w, "%s\t%s\t%.0f\t", r.pair, r.name, r.perSecond(r.executed))
		default:
			fmt.Fprintf(w, "%s\t", r.pair)
		}
		end := ""
		if t.Of == "nodes" {
			end = "\t" + used(chairs[r.pair], r.name)
		}
		fmt.Fprintf(w, "%.0f\t%.0f\t%.0f\t%s\t%s\t%s\t%s%s\n", r.perSecond(r.reads), r.perSecond(r.writes), r.perSecond(r.others),
			human.Size(uint64(r.perSecond(r.bytes))), short3(r.mean()), r.limit(0.99), r.forwardedText(), end)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	switch {
	case left > 0:
		fmt.Fprintf(t.Out, "%d more: use --limit\n", left)
	case len(list) == 0:
		fmt.Fprintln(t.Out, "no host has used a LUN since the target nodes were started")
	}
	for _, name := range slices.Sorted(maps.Keys(chairs)) {
		if o := chairs[name]; t.Of == "pairs" && o.Even != "" {
			fmt.Fprintf(t.Out, "%s: no work is evened: %s\n", name, o.Even)
		}
	}
	return nil
}

// pairsNamed are the TargetPairs with these names, or all of them.
func pairsNamed(ctx context.Context, c client.Client, names []string) ([]*v1alpha1.TargetPair, error) {
	l := &v1alpha1.TargetPairList{}
	if err := c.List(ctx, l); err != nil {
		return nil, err
	}
	known := map[string]*v1alpha1.TargetPair{}
	var all []*v1alpha1.TargetPair
	for i := range l.Items {
		known[l.Items[i].Name] = &l.Items[i]
		all = append(all, &l.Items[i])
	}
	if len(names) == 0 && len(all) == 0 {
		return nil, errors.New("there is no TargetPair")
	}
	if len(names) == 0 {
		return all, nil
	}
	all = nil
	for _, n := range names {
		if known[n] == nil {
			return nil, fmt.Errorf("TargetPair %q does not exist: see kubectl get targetpair", n)
		}
		all = append(all, known[n])
	}
	return all, nil
}
