package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/internal/human"
	"github.com/gemel-storage/gemel/internal/scrubs"
)

// Scrub starts scrubs of pairs and shows their progress.
type Scrub struct {
	Client  client.Client
	Control Control
	Out     io.Writer

	Repair   bool
	Rate     uint64        // bytes per second of each node at most; 0: the nodes' default
	Wait     bool          // wait until each has ended, one pair after the other
	Every    time.Duration // poll interval; 0: pollInterval
	Terminal bool          // Out is a terminal: progress is one line that changes
}

// ErrScrub: a scrub could not be started, or did not end well; the text says why.
var ErrScrub = errors.New("scrub")

// Poll interval, interval of progress lines without a terminal, and how long both nodes may not
// answer.
const (
	pollInterval = 2 * time.Second
	lineInterval = 30 * time.Second
	maxSilence   = time.Minute
	clearLine    = "\r\x1b[K"
	followScrub  = "follow it with kubectl gemel status, or use --wait"
)

func (f *flags) scrubCommand() *cobra.Command {
	s := &Scrub{}
	var rate string
	cmd := &cobra.Command{Use: "scrub [PAIR...]", Short: "Compare both copies of pairs while they serve; without PAIR those of every pair",
		Long: `Scrub starts a comparison of both copies of all data of the pairs. For each range of 1 MiB that differs, an event of the TargetPair
names the location. Blocks that do not match their checksums are repaired from the other copy; with --repair, other differences are
repaired from the copy that hosts read. While a scrub of a pair is running, scheduled or started manually, no other one is started:
the command shows the running scrub, and --wait waits for it.

It connects to the targets through the API server, and needs permission to read the Secret gemel-CLUSTER-control and to forward
ports of pods.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if s.Rate, err = rateOf(rate); err != nil {
				return err
			}
			if s.Control, s.Client, err = f.control(); err != nil {
				return err
			}
			s.Out = cmd.OutOrStdout()
			if o, ok := s.Out.(*os.File); ok {
				i, err := o.Stat()
				s.Terminal = err == nil && i.Mode()&os.ModeCharDevice != 0
			}
			return s.Run(cmd.Context(), args...)
		}}
	cmd.Flags().BoolVar(&s.Repair, "repair", false, "repair differences from the copy that hosts read")
	cmd.Flags().StringVar(&rate, "rate", "", "maximum number of bytes per second that each node compares, for example 128Mi (default 64Mi)")
	cmd.Flags().BoolVar(&s.Wait, "wait", false, "show the progress until the scrub has ended, of several pairs one after the other; fail unless both copies are equal then")
	return cmd
}

// rateOf reads --rate.
func rateOf(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() < 1<<20 || q.Value() > 1<<40 {
		return 0, fmt.Errorf("--rate: %q is not between 1Mi and 1Ti bytes per second: use 128Mi, for example, or omit --rate", text)
	}
	return uint64(q.Value()), nil
}

// Run scrubs the pairs named, or all.
func (s *Scrub) Run(ctx context.Context, names ...string) error {
	list, err := pairsNamed(ctx, s.Client, names)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrScrub, err)
	}
	var errs []error
	for _, p := range list {
		errs = append(errs, s.one(ctx, p))
	}
	return errors.Join(errs...)
}

func (s *Scrub) one(ctx context.Context, p *v1alpha1.TargetPair) error {
	nodes := &nodes{control: s.Control, pair: p}
	defer nodes.close()
	a, err := nodes.start(ctx, &targetv1.ScrubRequest{Repair: s.Repair, BytesPerSecond: s.Rate})
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrScrub, p.Name, err)
	}
	x, known := scrubs.Of(a.Shares...)
	switch {
	case !a.UnderWay:
		fmt.Fprintf(s.Out, "%s: comparing %s\n", p.Name, human.Size(a.TotalBytes))
	case known:
		fmt.Fprintf(s.Out, "%s: a scrub is already running, started at %s by %s: %s\n", p.Name, x.Started.Format(time.RFC3339), x.Who(), x.Progress(time.Now()))
		if s.Repair && !x.Repair {
			fmt.Fprintf(s.Out, "%s: it only reports differences; repeat the command with --repair when it has ended\n", p.Name)
		}
	default:
		fmt.Fprintf(s.Out, "%s: a scrub is already running\n", p.Name)
	}
	if !s.Wait {
		_, err := fmt.Fprintf(s.Out, "%s: %s\n", p.Name, followScrub)
		return err
	}
	return s.wait(ctx, p, nodes, x.ID)
}

// wait shows the progress of a scrub until it has ended.
func (s *Scrub) wait(ctx context.Context, p *v1alpha1.TargetPair, nodes *nodes, id string) error {
	every := s.Every
	if every == 0 {
		every = pollInterval
	}
	t := time.NewTicker(every)
	defer t.Stop()
	answered, printed, percent := time.Now(), time.Time{}, -1
	for {
		r, err := nodes.report(ctx, id)
		switch {
		case err == nil:
			answered = time.Now()
		case time.Since(answered) > maxSilence:
			return fmt.Errorf("%w: %s: %w; the scrub continues if the targets run", ErrScrub, p.Name, err)
		}
		if err == nil && !r.Active {
			if s.Terminal {
				fmt.Fprint(s.Out, clearLine)
			}
			fmt.Fprintf(s.Out, "%s: %s: %s\n", p.Name, r.Result(), r.Progress(time.Now()))
			if x := r.Result(); x != scrubs.Clean && x != scrubs.Repaired {
				return fmt.Errorf("%w: %s: %s", ErrScrub, p.Name, x)
			}
			return nil
		}
		if err == nil {
			line := p.Name + ": " + r.Progress(time.Now())
			switch {
			case s.Terminal:
				fmt.Fprint(s.Out, clearLine+line)
			case r.Percent() != percent || time.Since(printed) > lineInterval:
				fmt.Fprintln(s.Out, line)
				printed, percent = time.Now(), r.Percent()
			}
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w; the scrub continues", ErrScrub, p.Name, ctx.Err())
		}
	}
}

// nodes are the control APIs of a pair's nodes, connected on first use and again after an error.
type nodes struct {
	control Control
	pair    *v1alpha1.TargetPair
	open    map[string]targetv1.TargetServiceClient
	stops   map[string]func()
}

func (n *nodes) get(ctx context.Context, node string) (targetv1.TargetServiceClient, error) {
	if c := n.open[node]; c != nil {
		return c, nil
	}
	c, stop, err := n.control(ctx, n.pair, node)
	if err != nil {
		return nil, err
	}
	if n.open == nil {
		n.open, n.stops = map[string]targetv1.TargetServiceClient{}, map[string]func(){}
	}
	n.open[node], n.stops[node] = c, stop
	return c, nil
}

func (n *nodes) drop(node string) {
	if stop := n.stops[node]; stop != nil {
		stop()
	}
	delete(n.open, node)
	delete(n.stops, node)
}

func (n *nodes) close() {
	for _, node := range pair.Nodes {
		n.drop(node)
	}
}

// start requests a scrub from the first node that answers.
func (n *nodes) start(ctx context.Context, req *targetv1.ScrubRequest) (*targetv1.ScrubResponse, error) {
	var errs []error
	for _, node := range pair.Nodes {
		c, err := n.get(ctx, node)
		if err == nil {
			var a *targetv1.ScrubResponse
			if a, err = c.Scrub(ctx, req); err == nil {
				return a, nil
			}
			if status.Code(err) == codes.AlreadyExists { // a release that does not report which
				return &targetv1.ScrubResponse{UnderWay: true}, nil
			}
			if status.Code(err) == codes.FailedPrecondition {
				return nil, fmt.Errorf("node %s: %s", node, status.Convert(err).Message())
			}
		}
		errs = append(errs, fmt.Errorf("node %s: %w", node, err))
	}
	return nil, errors.Join(errs...)
}

// report combines the nodes' reports of the scrub with an ID, or of the newest scrub without an ID.
// It fails if no node reports it.
func (n *nodes) report(ctx context.Context, id string) (scrubs.Report, error) {
	var shares []*targetv1.Scrub
	var errs []error
	for _, node := range pair.Nodes {
		c, err := n.get(ctx, node)
		var s *targetv1.Status
		if err == nil {
			s, err = c.GetStatus(ctx, &targetv1.GetStatusRequest{})
		}
		if err != nil {
			n.drop(node)
			errs = append(errs, fmt.Errorf("node %s: %w", node, err))
			continue
		}
		for _, x := range []*targetv1.Scrub{s.Scrub, s.LastScrub} {
			if x != nil && (id == "" || x.Id == id) {
				shares = append(shares, x)
			}
		}
	}
	r, ok := scrubs.Of(shares...)
	if !ok {
		return r, errors.Join(append(errs, errors.New("no node reports the scrub"))...)
	}
	for _, err := range errs { // the share of a node that does not answer has ended
		if !r.Active {
			r.Reason = err.Error()
		}
	}
	return r, nil
}
