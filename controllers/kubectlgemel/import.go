package kubectlgemel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/logicalunit"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/controllers/snapshot"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

// Importer recreates missing objects from the objects made for them and from the disks.
type Importer struct {
	Client    client.Client
	Namespace string // of the operator
	Control   Control
	Out       io.Writer
	Apply     bool          // otherwise it only prints what it would do
	Patience  time.Duration // how long to wait until a recreated pair serves
	Every     time.Duration // poll interval; 0: 2 s
}

// callPatience bounds one call to a target.
const callPatience = 5 * time.Second

// ErrImport: some objects could not be created; the output names them.
var ErrImport = errors.New("not everything could be imported")

// count of objects.
type count struct{ missing, there, foreign, failed int }

// Run imports. Existing objects are not changed, so that it can be repeated. Neither Run nor the
// new objects destroy anything: every object is marked as made, so that no empty LUN is created,
// and lists its mapped hosts, so that none is fenced.
func (i *Importer) Run(ctx context.Context) error {
	found, err := pair.Rebuild(ctx, i.Client, i.Namespace)
	if err != nil {
		return err
	}
	if len(found.Pairs) == 0 {
		return fmt.Errorf("%w: namespace %s has no claim of a backing volume: set --system-namespace to the namespace of the operator", ErrImport, i.Namespace)
	}
	var n count
	for _, note := range found.Notes {
		fmt.Fprintln(i.Out, "note:", note)
	}
	// Pairs first: the operator would create those that a StorageCluster lacks, without their
	// disks, addresses and failure domains.
	for k := range found.Pairs {
		i.create(ctx, &n, &found.Pairs[k])
	}
	for k := range found.Clusters {
		i.create(ctx, &n, &found.Clusters[k])
	}
	w := wholesOnDisk{map[string][]*v1alpha1.LogicalUnit{}, map[string][]*v1alpha1.LogicalUnitSnapshot{}}
	unread := ""
	for k := range found.Pairs {
		if err := i.contents(ctx, &n, &found.Pairs[k], w); err != nil {
			n.failed++
			unread = found.Pairs[k].Name
			fmt.Fprintf(i.Out, "pair %s: %v\n", unread, err)
		}
	}
	i.striped(ctx, &n, w, unread)
	made := "created"
	if !i.Apply {
		made = "would be created"
	}
	fmt.Fprintf(i.Out, "%d objects %s, %d exist, %d on the disks belong to no object, %d failed\n", n.missing, made, n.there, n.foreign, n.failed)
	if n.failed > 0 {
		return ErrImport
	}
	if !i.Apply && n.missing > 0 {
		fmt.Fprintln(i.Out, "nothing was changed: repeat the command with --apply")
	}
	return nil
}

// create an object unless it exists.
func (i *Importer) create(ctx context.Context, n *count, o client.Object) {
	kind := o.GetObjectKind().GroupVersionKind().Kind
	err := i.Client.Get(ctx, client.ObjectKeyFromObject(o), o.DeepCopyObject().(client.Object))
	if err == nil {
		n.there++
		return
	}
	if apierrors.IsNotFound(err) {
		err = nil
		if i.Apply {
			err = i.Client.Create(ctx, o, client.FieldOwner("kubectl-gemel"))
		}
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		n.there++
	case err != nil:
		n.failed++
		fmt.Fprintf(i.Out, "%s %s: %v\n", kind, o.GetName(), err)
	default:
		n.missing++
		fmt.Fprintf(i.Out, "%s %s%s\n", kind, o.GetName(), describe(o))
	}
}

func describe(o client.Object) string {
	switch o := o.(type) {
	case *v1alpha1.LogicalUnit:
		return fmt.Sprintf(": %s, claim %s/%s, %d hosts", o.Spec.Size.String(), o.Spec.Volume.Namespace, o.Spec.Volume.PVC, len(o.Spec.Hosts))
	case *v1alpha1.LogicalUnitSnapshot:
		return ": of " + o.Spec.Source
	}
	return ""
}

// contents creates the objects of the LUNs and snapshots of a pair.
func (i *Importer) contents(ctx context.Context, n *count, p *v1alpha1.TargetPair, w wholesOnDisk) error {
	c, done, err := i.serving(ctx, p)
	if err != nil {
		return err
	}
	defer done()
	for l, err := range pairclient.LUNs(ctx, c) {
		if err != nil {
			return fmt.Errorf("list the LUNs: %w", err)
		}
		o, err := logicalunit.FromDisk(p.Name, l)
		if err == nil && o.Spec.Leg != nil {
			w.legs[o.Spec.Leg.UUID] = append(w.legs[o.Spec.Leg.UUID], o)
		}
		i.createFromDisk(ctx, n, o, err)
	}
	for s, err := range pairclient.Snapshots(ctx, c) {
		if err != nil {
			return fmt.Errorf("list the snapshots: %w", err)
		}
		o, err := snapshot.FromDisk(p.Name, s)
		if err == nil && o.Spec.Leg != nil {
			w.parts[o.Spec.Leg.UUID] = append(w.parts[o.Spec.Leg.UUID], o)
		}
		i.createFromDisk(ctx, n, o, err)
	}
	return nil
}

// createFromDisk creates an object from the disks, or prints why it cannot.
func (i *Importer) createFromDisk(ctx context.Context, n *count, o client.Object, err error) {
	if err != nil {
		n.foreign++
		fmt.Fprintln(i.Out, "skipped:", err)
		return
	}
	i.create(ctx, n, o)
}

// serving connects to a node that serves, and waits for it if the pair was recreated.
func (i *Importer) serving(ctx context.Context, p *v1alpha1.TargetPair) (targetv1.TargetServiceClient, func(), error) {
	every := i.Every
	if every == 0 {
		every = 2 * time.Second
	}
	for start, printed := time.Now(), false; ; {
		var errs []error
		for _, node := range pair.Nodes {
			c, done, err := i.Control(ctx, p, node)
			if err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", node, err))
				continue
			}
			s, err := c.GetStatus(ctx, &targetv1.GetStatusRequest{})
			if err == nil && pairclient.Serves(s.Phase) {
				return c, done, nil
			}
			done()
			if err == nil {
				err = fmt.Errorf("%v: %s", s.Phase, s.Reason)
			}
			errs = append(errs, fmt.Errorf("node %s: %w", node, err))
		}
		err := fmt.Errorf("no node serves: %w", errors.Join(errs...))
		if !i.Apply || time.Since(start) > i.Patience {
			return nil, nil, err
		}
		if !printed {
			fmt.Fprintf(i.Out, "pair %s: waiting until one of its nodes serves, %v at most\n", p.Name, i.Patience)
			printed = true
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return nil, nil, errors.Join(ctx.Err(), err)
		}
	}
}
