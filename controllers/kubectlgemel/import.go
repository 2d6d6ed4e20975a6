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

// Importer makes objects that are missing again, from what was made for them and from the disks.
type Importer struct {
	Client    client.Client
	Namespace string // of the operator
	Control   Control
	Out       io.Writer
	Apply     bool          // else it only says what it would do
	Patience  time.Duration // how long a pair that was made again may take until one of its nodes serves
	Every     time.Duration // between two looks meanwhile; 0: 2 s
}

// callPatience is how long one call to a target is tried.
const callPatience = 5 * time.Second

// ErrImport: some objects could not be made; what was said before names them.
var ErrImport = errors.New("not everything could be imported")

// count of what was done.
type count struct{ missing, there, foreign, failed int }

// Run imports. Objects that are there are left alone, whatever they say, so that it may be run as often as one likes. It destroys
// nothing, and neither does what it makes: every object says that its data was made, so that none is made again empty, and names the
// hosts that reach it, so that none is fenced.
func (i *Importer) Run(ctx context.Context) error {
	found, err := pair.Rebuild(ctx, i.Client, i.Namespace)
	if err != nil {
		return err
	}
	if len(found.Pairs) == 0 {
		return fmt.Errorf("%w: the namespace %s has no claim of a backing volume: name the operator's with --system-namespace", ErrImport, i.Namespace)
	}
	var n count
	for _, note := range found.Notes {
		fmt.Fprintln(i.Out, "note:", note)
	}
	for k := range found.Clusters {
		i.make(ctx, &n, &found.Clusters[k])
	}
	for k := range found.Pairs {
		i.make(ctx, &n, &found.Pairs[k])
	}
	for k := range found.Pairs {
		if err := i.contents(ctx, &n, &found.Pairs[k]); err != nil {
			n.failed++
			fmt.Fprintf(i.Out, "pair %s: %v\n", found.Pairs[k].Name, err)
		}
	}
	made := "made"
	if !i.Apply {
		made = "would be made"
	}
	fmt.Fprintf(i.Out, "%d objects %s, %d are there, %d on the disks belong to no object, %d failed\n", n.missing, made, n.there, n.foreign, n.failed)
	if n.failed > 0 {
		return ErrImport
	}
	if !i.Apply && n.missing > 0 {
		fmt.Fprintln(i.Out, "nothing was changed: run it again with --apply")
	}
	return nil
}

// make one object unless it is there.
func (i *Importer) make(ctx context.Context, n *count, o client.Object) {
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

// contents makes the objects of the LUNs and snapshots that a pair holds.
func (i *Importer) contents(ctx context.Context, n *count, p *v1alpha1.TargetPair) error {
	c, done, err := i.serving(ctx, p)
	if err != nil {
		return err
	}
	defer done()
	for l, err := range pairclient.LUNs(ctx, c) {
		if err != nil {
			return fmt.Errorf("its LUNs: %w", err)
		}
		o, err := logicalunit.FromDisk(p.Name, l)
		i.put(ctx, n, o, err)
	}
	for s, err := range pairclient.Snapshots(ctx, c) {
		if err != nil {
			return fmt.Errorf("its snapshots: %w", err)
		}
		o, err := snapshot.FromDisk(p.Name, s)
		i.put(ctx, n, o, err)
	}
	return nil
}

// put makes an object that the disks describe, or says that they do not.
func (i *Importer) put(ctx context.Context, n *count, o client.Object, err error) {
	if err != nil {
		n.foreign++
		fmt.Fprintln(i.Out, "left alone:", err)
		return
	}
	i.make(ctx, n, o)
}

// serving finds a node that serves. After the pair's objects were made again its targets may have to start first.
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
