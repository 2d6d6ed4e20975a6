package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
)

// nodes does for target nodes what the StatefulSet controller, the scheduler and the kubelet do:
// each StatefulSet has a pod that runs, with its claims bound, and its control API answers. It is
// done once when everything is so, and called again.
func (f *Fleet) nodes(ctx context.Context) error {
	var sets appsv1.StatefulSetList
	if err := f.Client.List(ctx, &sets, client.InNamespace(Namespace)); err != nil {
		return err
	}
	for i := range sets.Items {
		if err := f.pod(ctx, &sets.Items[i]); err != nil {
			return fmt.Errorf("StatefulSet %s: %w", sets.Items[i].Name, err)
		}
	}
	var pairs v1alpha1.TargetPairList
	if err := f.Client.List(ctx, &pairs); err != nil {
		return err
	}
	for i := range pairs.Items {
		if err := f.control(ctx, &pairs.Items[i]); err != nil {
			return fmt.Errorf("TargetPair %s: %w", pairs.Items[i].Name, err)
		}
	}
	return nil
}

// control starts the control API of the nodes of a pair that have an address and a certificate.
func (f *Fleet) control(ctx context.Context, p *v1alpha1.TargetPair) error {
	for _, n := range p.Spec.Nodes {
		address, err := netip.ParseAddr(n.Address)
		if err != nil || f.Pairs.Knows(address) {
			continue
		}
		s := &corev1.Secret{}
		if err := f.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: pair.NodeName(p.Name, n.Name)}, s); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return err
		}
		c, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return err
		}
		f.Pairs.Add(address, p.Spec.Cluster, p.Name, n.Name, c, f.Capacity)
	}
	return nil
}

// pod is the one pod of a StatefulSet, of its present template.
func (f *Fleet) pod(ctx context.Context, s *appsv1.StatefulSet) error {
	p := &corev1.Pod{}
	err := f.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name + "-0"}, p)
	switch {
	case err == nil && !p.DeletionTimestamp.IsZero():
		return client.IgnoreNotFound(f.Client.Delete(ctx, p, client.GracePeriodSeconds(0)))
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return err
	}
	t := s.Spec.Template
	p = &corev1.Pod{ObjectMeta: *t.ObjectMeta.DeepCopy(), Spec: *t.Spec.DeepCopy()}
	p.Namespace, p.Name = s.Namespace, s.Name+"-0"
	h := fnv.New32()
	_, _ = h.Write([]byte(p.Name))
	worker := workerName(int(h.Sum32()) % f.Workers)
	p.Spec.NodeName, p.Spec.Priority, p.Spec.PriorityClassName = worker, nil, ""
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		if err := f.bind(ctx, v.PersistentVolumeClaim.ClaimName, worker); err != nil {
			return err
		}
	}
	if err := f.Client.Create(ctx, p); err != nil {
		return err
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "192.0.2.1", PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}, StartTime: &metav1.Time{Time: time.Now()},
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}})
	}
	return f.Client.Status().Update(ctx, p)
}

// bind gives a claim a local volume of the worker.
func (f *Fleet) bind(ctx context.Context, name, worker string) error {
	claim := &corev1.PersistentVolumeClaim{}
	if err := f.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, claim); err != nil {
		return err
	}
	if claim.Spec.VolumeName != "" {
		return nil
	}
	size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(int64(f.Capacity), resource.BinarySI)}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "local-" + name}, Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: claim.Spec.AccessModes,
		StorageClassName: *claim.Spec.StorageClassName, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: Namespace, Name: name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disks/" + name}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{worker}}}}}}}}}
	if err := client.IgnoreAlreadyExists(f.Client.Create(ctx, v)); err != nil {
		return err
	}
	claim.Spec.VolumeName = v.Name
	if err := f.Client.Update(ctx, claim); err != nil {
		return err
	}
	claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, size
	return f.Client.Status().Update(ctx, claim)
}
