package kubectlgemel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/kubectlgemel/doctor"
)

// Doctor prints everything that is wrong according to the objects.
type Doctor struct {
	Client    client.Client
	Namespace string // of the operator
	Out       io.Writer

	Output string           // text or json
	Now    func() time.Time // nil: time.Now
}

// ErrWrong: something is wrong; the output says what.
var ErrWrong = errors.New("something is wrong: see above")

// ErrNotExamined: the state could not be read, so it is unknown whether something is wrong.
var ErrNotExamined = errors.New("cannot examine the cluster")

// ExitCode of the plugin for an error of the command: scripts have to distinguish a cluster with
// trouble from one that could not be examined.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrNotExamined):
		return 2
	}
	return 1
}

func (f *flags) doctorCommand() *cobra.Command {
	d := &Doctor{}
	unread := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("%w: %w", ErrNotExamined, err)
	}
	cmd := &cobra.Command{Use: "doctor", Short: "Say what is wrong, why, and what to do, the worst first",
		Long: `Doctor examines all StorageClusters, TargetPairs, LogicalUnits, LogicalUnitSnapshots, LogicalUnitGroupSnapshots and Hosts,
and prints a finding for each trouble: its severity and object, its cause, the evidence, and the procedure. Critical: hosts do not get
their data, data is lost or in doubt, or the next failure has that effect. Warning: something does not work or is not redundant. Note: a
person should do something, and nothing is affected yet. What is only in progress, for as long as it usually takes, is no finding; many
alike findings are one.

It reads these objects from the API server and changes nothing. Exit code: 0 if nothing is wrong, 1 if there is a finding, 2 if it could
not read the objects.`,
		Args: func(cmd *cobra.Command, args []string) error { return unread(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.Output != "text" && d.Output != "json" {
				return fmt.Errorf("%w: --output %q: use text or json", ErrNotExamined, d.Output)
			}
			var err error
			if d.Client, _, err = f.client(); err != nil {
				return unread(err)
			}
			d.Namespace, d.Out = f.system, cmd.OutOrStdout()
			return d.Run(cmd.Context())
		}}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return unread(err) })
	cmd.Flags().StringVarP(&d.Output, "output", "o", "text", "text or json")
	return cmd
}

// Run examines the objects and prints the findings. It fails with ErrWrong if there is a finding,
// and with ErrNotExamined if the objects cannot be read or the findings cannot be printed.
func (d *Doctor) Run(ctx context.Context) error {
	o, err := d.read(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotExamined, err)
	}
	now := time.Now
	if d.Now != nil {
		now = d.Now
	}
	list := doctor.Examine(o, now())
	if d.Output == "json" {
		e := json.NewEncoder(d.Out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		err = e.Encode(list)
	} else {
		_, err = io.WriteString(d.Out, findingsText(o, list))
	}
	if err != nil {
		return fmt.Errorf("%w: print the findings: %w", ErrNotExamined, err)
	}
	if len(list) > 0 {
		return ErrWrong
	}
	return nil
}

// page is how many objects of a kind are read at a time.
const page = 500

// read reads all objects. LogicalUnits are read after the pairs, whose status lists LUNs without a
// LogicalUnit: an object that was made meanwhile is seen.
func (d *Doctor) read(ctx context.Context) (*doctor.Objects, error) {
	o := &doctor.Objects{Namespace: d.Namespace}
	for _, k := range []struct {
		what string
		list client.ObjectList
		keep func(client.ObjectList)
		drop func()
	}{
		{"StorageClusters", &v1alpha1.StorageClusterList{}, func(l client.ObjectList) { o.Clusters = append(o.Clusters, l.(*v1alpha1.StorageClusterList).Items...) }, func() { o.Clusters = nil }},
		{"TargetPairs", &v1alpha1.TargetPairList{}, func(l client.ObjectList) { o.Pairs = append(o.Pairs, l.(*v1alpha1.TargetPairList).Items...) }, func() { o.Pairs = nil }},
		{"LogicalUnits", &v1alpha1.LogicalUnitList{}, func(l client.ObjectList) { o.LUNs = append(o.LUNs, l.(*v1alpha1.LogicalUnitList).Items...) }, func() { o.LUNs = nil }},
		{"LogicalUnitSnapshots", &v1alpha1.LogicalUnitSnapshotList{}, func(l client.ObjectList) {
			o.Snapshots = append(o.Snapshots, l.(*v1alpha1.LogicalUnitSnapshotList).Items...)
		}, func() { o.Snapshots = nil }},
		{"LogicalUnitGroupSnapshots", &v1alpha1.LogicalUnitGroupSnapshotList{}, func(l client.ObjectList) {
			o.Groups = append(o.Groups, l.(*v1alpha1.LogicalUnitGroupSnapshotList).Items...)
		}, func() { o.Groups = nil }},
		{"Hosts", &v1alpha1.HostList{}, func(l client.ObjectList) { o.Hosts = append(o.Hosts, l.(*v1alpha1.HostList).Items...) }, func() { o.Hosts = nil }},
	} {
		err := d.pages(ctx, k.list, page, k.keep)
		if apierrors.IsResourceExpired(err) { // the list has changed too much since its first page
			k.drop()
			err = d.pages(ctx, k.list, 0, k.keep)
		}
		if err = withoutGroups(k.list, err); err != nil {
			return nil, fmt.Errorf("list %s: %w", k.what, err)
		}
	}
	return o, nil
}

// pages reads a list in pages of limit objects; 0: at once.
func (d *Doctor) pages(ctx context.Context, l client.ObjectList, limit int64, keep func(client.ObjectList)) error {
	next := ""
	for {
		p := l.DeepCopyObject().(client.ObjectList) // an empty one: the items of the page before are in use
		if err := d.Client.List(ctx, p, client.Limit(limit), client.Continue(next)); err != nil {
			return err
		}
		keep(p)
		if next = p.GetContinue(); next == "" {
			return nil
		}
	}
}

// findingsText is the findings for people.
func findingsText(o *doctor.Objects, list []doctor.Finding) string {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%s  %s", strings.ToUpper(string(f.Severity)), f.Object)
		for _, name := range f.Others {
			fmt.Fprintf(&b, ", %s", name)
		}
		if more := f.Count - 1 - len(f.Others); more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
		fmt.Fprintf(&b, ": %s\n", f.Problem)
		part(&b, "cause", f.Cause)
		part(&b, "evidence", f.Evidence...)
		part(&b, "procedure", f.Procedure...)
		b.WriteString("\n")
	}
	var counts []string
	for _, s := range doctor.Severities {
		n := 0
		for i := range list {
			if list[i].Severity == s {
				n++
			}
		}
		counts = append(counts, fmt.Sprintf("%d %s", n, s))
	}
	verdict := "nothing is wrong"
	if len(list) > 0 {
		verdict = strings.Join(counts, ", ")
	}
	fmt.Fprintf(&b, "%s; examined: StorageClusters %d, TargetPairs %d, LogicalUnits %d, LogicalUnitSnapshots %d, LogicalUnitGroupSnapshots %d, Hosts %d\n", verdict, len(o.Clusters), len(o.Pairs), len(o.LUNs), len(o.Snapshots), len(o.Groups), len(o.Hosts))
	return b.String()
}

// part prints lines under a word.
func part(b *strings.Builder, word string, lines ...string) {
	for i, line := range slices.DeleteFunc(slices.Clone(lines), func(s string) bool { return s == "" }) {
		if i > 0 {
			word = ""
		}
		fmt.Fprintf(b, "  %-9s  %s\n", word, line)
	}
}
