package kubectlgemel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GroupRestore makes a claim from each snapshot of a VolumeGroupSnapshot.
type GroupRestore struct {
	Client    client.Client
	Namespace string // of the VolumeGroupSnapshot and of the claims
	Out       io.Writer

	Prefix, Suffix string // of the names of the claims
	StorageClass   string // of the claims; empty: that of each source claim
}

// ErrRestore: no claim was made, or not all; the text says why.
var ErrRestore = errors.New("not restored")

func (f *flags) groupCommand() *cobra.Command {
	g := &GroupRestore{}
	restore := &cobra.Command{Use: "restore VOLUMEGROUPSNAPSHOT", Short: "Make a claim from each snapshot of a VolumeGroupSnapshot", Args: cobra.ExactArgs(1),
		Long: `Restore makes one PersistentVolumeClaim from each VolumeSnapshot of a VolumeGroupSnapshot, with the size, access modes, volume mode
and StorageClass of the claim that the snapshot is of. A claim is named as that claim, with --prefix before its name and --suffix
after it. Labels are not copied: they select the claims of the next VolumeGroupSnapshot.

If the source claim has been deleted, the size is that of the snapshot, the access mode ReadWriteOnce, and --storage-class is needed.

All claims are tried first: if one of them exists, or the API server refuses one, none is made.`,
		Example: `  kubectl gemel group restore nightly -n shop --suffix=-restored`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if g.Client, g.Namespace, err = f.client(); err != nil {
				return err
			}
			g.Out = cmd.OutOrStdout()
			return g.Run(cmd.Context(), args[0])
		}}
	restore.Flags().StringVar(&g.Prefix, "prefix", "", "what the names of the claims begin with")
	restore.Flags().StringVar(&g.Suffix, "suffix", "", "what the names of the claims end with")
	restore.Flags().StringVar(&g.StorageClass, "storage-class", "", "StorageClass of the claims (default: that of each source claim)")
	cmd := &cobra.Command{Use: "group", Short: "Commands for group snapshots", Args: cobra.NoArgs}
	cmd.AddCommand(restore)
	return cmd
}

// Run restores. All claims are tried without being made first, so that a name that exists or a
// quota is found before there is a part of the group.
func (g *GroupRestore) Run(ctx context.Context, name string) error {
	snapshots, err := g.snapshots(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: VolumeGroupSnapshot %s/%s: %w", ErrRestore, g.Namespace, name, err)
	}
	var claims []*corev1.PersistentVolumeClaim
	var errs []error
	for i := range snapshots {
		c, err := g.claim(ctx, &snapshots[i])
		if err == nil {
			err = g.create(ctx, c.DeepCopy(), client.DryRunAll)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: VolumeSnapshot %s: %w", ErrRestore, snapshots[i].Name, err))
		}
		claims = append(claims, c)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, c := range claims {
		if err := g.create(ctx, c); err != nil {
			return fmt.Errorf("%w: %d of %d claims were made, as printed, delete them to repeat the command: %w", ErrRestore, i, len(claims), err)
		}
		size := c.Spec.Resources.Requests[corev1.ResourceStorage]
		if _, err := fmt.Fprintf(g.Out, "claim %s/%s: %s, %v, StorageClass %s, from VolumeSnapshot %s of claim %s\n", c.Namespace, c.Name, size.String(), c.Spec.AccessModes,
			*c.Spec.StorageClassName, snapshots[i].Name, sourceClaim(&snapshots[i])); err != nil {
			return err
		}
	}
	return nil
}

func (g *GroupRestore) create(ctx context.Context, c *corev1.PersistentVolumeClaim, opts ...client.CreateOption) error {
	err := g.Client.Create(ctx, c, append(opts, client.FieldOwner("kubectl-gemel"))...)
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("claim %s/%s exists: set --prefix or --suffix, or delete it", c.Namespace, c.Name)
	}
	return err
}

// snapshots of a VolumeGroupSnapshot that can be used, by the names of their source claims.
func (g *GroupRestore) snapshots(ctx context.Context, name string) ([]snapshotv1.VolumeSnapshot, error) {
	group := &groupsnapshotv1.VolumeGroupSnapshot{}
	if err := g.Client.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, group); err != nil {
		return nil, err
	}
	switch s := group.Status; {
	case !group.DeletionTimestamp.IsZero():
		return nil, errors.New("it is being deleted")
	case s != nil && s.Error != nil && s.Error.Message != nil && (s.ReadyToUse == nil || !*s.ReadyToUse):
		return nil, fmt.Errorf("it is not ready to use: %s", *s.Error.Message)
	case s == nil || s.ReadyToUse == nil || !*s.ReadyToUse:
		return nil, errors.New("it is not ready to use yet")
	}
	var list snapshotv1.VolumeSnapshotList
	if err := g.Client.List(ctx, &list, client.InNamespace(g.Namespace)); err != nil {
		return nil, err
	}
	of := slices.DeleteFunc(list.Items, func(s snapshotv1.VolumeSnapshot) bool { return !memberOf(&s, group) })
	if len(of) == 0 {
		return nil, errors.New("no VolumeSnapshot belongs to it: check that the snapshot-controller runs with the feature gate CSIVolumeGroupSnapshot")
	}
	for i := range of {
		if s := of[i].Status; s == nil || s.ReadyToUse == nil || !*s.ReadyToUse || s.RestoreSize == nil {
			return nil, fmt.Errorf("its VolumeSnapshot %s is not ready to use yet", of[i].Name)
		}
	}
	slices.SortFunc(of, func(a, b snapshotv1.VolumeSnapshot) int {
		return cmp.Or(strings.Compare(sourceClaim(&a), sourceClaim(&b)), strings.Compare(a.Name, b.Name))
	})
	return of, nil
}

// memberOf reports whether a snapshot is of this group, and not of one that had its name before.
// The snapshots of a group that was made for existing data may have no owner.
func memberOf(s *snapshotv1.VolumeSnapshot, group *groupsnapshotv1.VolumeGroupSnapshot) bool {
	for _, o := range s.OwnerReferences {
		if o.Kind == "VolumeGroupSnapshot" {
			return o.UID == group.UID
		}
	}
	return s.Status != nil && s.Status.VolumeGroupSnapshotName != nil && *s.Status.VolumeGroupSnapshotName == group.Name
}

// sourceClaim is the name of the claim that a snapshot is of, or of the snapshot if none is known.
func sourceClaim(s *snapshotv1.VolumeSnapshot) string {
	if c := s.Spec.Source.PersistentVolumeClaimName; c != nil && *c != "" {
		return *c
	}
	return s.Name
}

// claim returns the claim for a snapshot.
func (g *GroupRestore) claim(ctx context.Context, s *snapshotv1.VolumeSnapshot) (*corev1.PersistentVolumeClaim, error) {
	from := sourceClaim(s)
	source := &corev1.PersistentVolumeClaim{}
	err := g.Client.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: from}, source)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	group := snapshotv1.GroupName
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: g.Prefix + from + g.Suffix},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: source.Spec.AccessModes, VolumeMode: source.Spec.VolumeMode, StorageClassName: source.Spec.StorageClassName,
			DataSource: &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: s.Name}}}
	if class, ok := source.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		c.Spec.StorageClassName = &class
	}
	if g.StorageClass != "" {
		c.Spec.StorageClassName = &g.StorageClass
	}
	if c.Spec.StorageClassName == nil {
		return nil, fmt.Errorf("claim %s has no StorageClass, or does not exist any more: set --storage-class", from)
	}
	if err != nil { // the claim is gone
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		if c.Spec.VolumeMode, err = g.volumeMode(ctx, s); err != nil {
			return nil, err
		}
	}
	// The volume of a claim may be larger than the claim asked for, and a copy is not smaller.
	size := source.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(*s.Status.RestoreSize) < 0 {
		size = *s.Status.RestoreSize
	}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	return c, nil
}

// volumeMode of the volume that a snapshot is of.
func (g *GroupRestore) volumeMode(ctx context.Context, s *snapshotv1.VolumeSnapshot) (*corev1.PersistentVolumeMode, error) {
	if s.Status.BoundVolumeSnapshotContentName == nil {
		return nil, nil
	}
	var content snapshotv1.VolumeSnapshotContent
	if err := g.Client.Get(ctx, client.ObjectKey{Name: *s.Status.BoundVolumeSnapshotContentName}, &content); err != nil {
		return nil, err
	}
	return content.Spec.SourceVolumeMode, nil
}
