package sanity

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/identity"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// sidecarsVariable names a folder with csi-provisioner, csi-resizer, csi-snapshotter and
// snapshot-controller; hack/sidecars.sh builds them.
const sidecarsVariable = "GEMEL_SIDECARS"

// sidecar runs one with the flags of the chart, for the rest of the test.
func (e *env) sidecar(name string, args ...string) {
	e.t.Helper()
	e.controller(name, append([]string{"--csi-address=" + filepath.Join(e.dir, "csi.sock")}, args...)...)
}

// controller runs one that does not talk to the driver.
func (e *env) controller(name string, args ...string) {
	e.t.Helper()
	log, err := os.Create(filepath.Join(e.dir, name+".log"))
	e.ok(err)
	cmd := exec.Command(filepath.Join(os.Getenv(sidecarsVariable), name),
		append([]string{"--kubeconfig=" + filepath.Join(e.dir, "kubeconfig"), "--retry-interval-start=500ms"}, args...)...)
	cmd.Env = append(os.Environ(), "NAMESPACE=default")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal is tied to the thread that forks
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	e.ok(<-started)
	e.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = log.Close()
		if e.t.Failed() {
			b, _ := os.ReadFile(log.Name())
			e.t.Logf("log of %s:\n%s", name, tail(b))
		}
	})
}

// The real external-provisioner and external-resizer: a claim's VolumeAttributesClass is that of
// its LUN, at first and later, a wrong one is refused with its parameter's name, there is one
// CSIStorageCapacity, which stays, a claim that waits for its first pod has its LUN near it, and
// volumes have a node affinity if their class or pool is for some workers.
func TestRealSidecars(t *testing.T) {
	if os.Getenv(sidecarsVariable) == "" || os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skipf("%s and KUBEBUILDER_ASSETS are not set: folders with csi-provisioner and csi-resizer, and with kube-apiserver and etcd; `make test` builds them", sidecarsVariable)
	}
	t.Setenv(backendVariable, "objects")
	e := start(t, 3*time.Minute)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(e.dir, "kubeconfig"))
	e.ok(err)
	c, err := client.New(cfg, client.Options{Scheme: envtest.Scheme(t)})
	e.ok(err)
	create := func(list ...client.Object) {
		t.Helper()
		for _, o := range list {
			e.ok(c.Create(e.ctx, o))
		}
	}
	class := func(name string, parameters map[string]string) client.Object {
		return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: v1alpha1.DriverName, Parameters: parameters}
	}
	var node corev1.Node
	e.ok(client.IgnoreAlreadyExists(c.Create(e.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})))
	label := func(labels map[string]string) {
		t.Helper()
		e.ok(c.Get(e.ctx, client.ObjectKey{Name: nodeName}, &node))
		bare := node.DeepCopy()
		node.Labels = maps.Clone(node.Labels)
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		maps.Copy(node.Labels, labels)
		e.ok(c.Patch(e.ctx, &node, client.MergeFrom(bare)))
	}
	label(map[string]string{corev1.LabelTopologyZone: "z1", corev1.LabelTopologyRegion: "r1"})
	segments := maps.Clone(identity.Topology)
	segments[corev1.LabelTopologyZone], segments[corev1.LabelTopologyRegion] = "z1", "r1"
	info, err := e.plugin.Node.NodeGetInfo(e.ctx, &csi.NodeGetInfoRequest{})
	e.ok(err)
	if !maps.Equal(info.AccessibleTopology.GetSegments(), segments) {
		t.Fatalf("the worker is in %v", info.AccessibleTopology)
	}
	create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gemel"}, Provisioner: v1alpha1.DriverName,
		Parameters: map[string]string{"cluster": operator.Cluster}, VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate)},
		class("through", map[string]string{"writeCache": "write-through", "preferredNode": "b"}),
		class("wrong", map[string]string{"writeCache": "none"}),
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: v1alpha1.DriverName, NodeID: e.nodeID(),
			TopologyKeys: slices.Collect(maps.Keys(segments))}}}})
	label(segments) // The kubelet labels its node with what the plugin names.
	sample, err := os.ReadFile(filepath.Join(harness.Root(), "config", "samples", "volumeattributesclass.yaml"))
	e.ok(err)
	for _, doc := range strings.Split(string(sample), "\n---\n") {
		var x storagev1.VolumeAttributesClass
		e.ok(yaml.UnmarshalStrict([]byte(doc), &x))
		create(&x)
	}
	e.sidecar("csi-provisioner", "--extra-create-metadata", "--enable-capacity", "--capacity-for-immediate-binding", "--capacity-ownerref-level=-1",
		"--capacity-poll-interval=1s", "--default-fstype=xfs")
	e.sidecar("csi-resizer", "--handle-volume-inuse-error=false")

	// There is no controller-manager: what it does for a claim is done here.
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default",
		Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": v1alpha1.DriverName}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("gemel"), VolumeAttributesClassName: ptr.To("through"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("320Mi")}}}}
	create(claim)
	var pv corev1.PersistentVolume
	e.ok(harness.Wait(e.ctx, "the volume is made", func() (bool, string) {
		err := c.Get(e.ctx, client.ObjectKey{Name: "pvc-" + string(claim.UID)}, &pv)
		return err == nil, fmt.Sprint(err)
	}))
	if pv.Spec.NodeAffinity != nil || ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != "through" {
		t.Errorf("%+v", pv.Spec)
	}
	mode := func() string {
		var lu v1alpha1.LogicalUnit
		e.ok(e.api.Get(e.ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, &lu))
		return lu.Status.WriteCache + " " + lu.Status.PreferredNode
	}
	if m := mode(); m != "write-through b" {
		t.Fatalf("it was made as %s", m)
	}
	// For immediate binding the provisioner prefers a segment too, but it is that of no consumer.
	var lu v1alpha1.LogicalUnit
	e.ok(e.api.Get(e.ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, &lu))
	if lu.Spec.Consumer != nil || lu.Spec.Placement.Home != "" {
		t.Errorf("without a consumer: %+v, %+v", lu.Spec.Consumer, lu.Spec.Placement)
	}
	key := client.ObjectKeyFromObject(claim)
	e.ok(c.Get(e.ctx, key, claim))
	claim.Spec.VolumeName = pv.Name
	e.ok(c.Update(e.ctx, claim))
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: pv.Spec.Capacity, CurrentVolumeAttributesClassName: ptr.To("through")}
	e.ok(c.Status().Update(e.ctx, claim))
	pv.Status.Phase = corev1.VolumeBound
	e.ok(c.Status().Update(e.ctx, &pv))

	change := func(class string) {
		t.Helper()
		e.ok(harness.Wait(e.ctx, "the claim names "+class, func() (bool, string) {
			e.ok(c.Get(e.ctx, key, claim))
			claim.Spec.VolumeAttributesClassName = ptr.To(class)
			err := c.Update(e.ctx, claim)
			return err == nil, fmt.Sprint(err)
		}))
	}
	change("gemel-write-back") // of the samples
	e.ok(harness.Wait(e.ctx, "the class is that of the volume", func() (bool, string) {
		e.ok(c.Get(e.ctx, key, claim))
		return ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "") == "gemel-write-back", fmt.Sprintf("%+v", claim.Status)
	}))
	if m := mode(); m != "write-back b" {
		t.Errorf("it became %s", m)
	}
	change("wrong")
	e.ok(harness.Wait(e.ctx, "the wrong class is refused", func() (bool, string) {
		e.ok(c.Get(e.ctx, key, claim))
		s := claim.Status.ModifyVolumeStatus
		return s != nil && s.Status == corev1.PersistentVolumeClaimModifyVolumeInfeasible, fmt.Sprintf("%+v", claim.Status)
	}))
	var events corev1.EventList
	e.ok(harness.Wait(e.ctx, "an event names the parameter", func() (bool, string) {
		e.ok(c.List(e.ctx, &events, client.InNamespace("default")))
		for _, x := range events.Items {
			if x.InvolvedObject.Name == "data" && strings.Contains(x.Message, "writeCache") && strings.Contains(x.Message, "none") {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d events", len(events.Items))
	}))

	var list storagev1.CSIStorageCapacityList
	e.ok(harness.Wait(e.ctx, "a capacity is published", func() (bool, string) {
		e.ok(c.List(e.ctx, &list))
		return len(list.Items) == 1 && !list.Items[0].Capacity.IsZero(), fmt.Sprintf("%+v", list.Items)
	}))
	x := list.Items[0]
	if x.StorageClassName != "gemel" || x.NodeTopology == nil || !maps.Equal(x.NodeTopology.MatchLabels, segments) || len(x.NodeTopology.MatchExpressions) != 0 || x.MaximumVolumeSize == nil || x.MaximumVolumeSize.Cmp(*x.Capacity) != 0 {
		t.Errorf("%+v", x)
	}
	// It is published once, not again and again: a scheduler that looks in between would find no
	// worker good enough (decision 0019).
	time.Sleep(5 * time.Second) // five of the provisioner's looks
	e.ok(c.List(e.ctx, &list))
	if len(list.Items) != 1 || list.Items[0].UID != x.UID {
		t.Errorf("%+v was made again: %+v", x, list.Items)
	}
	e.ok(c.Delete(e.ctx, claim))
	_, err = e.plugin.Controller.DeleteVolume(e.ctx, &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle})
	e.ok(err)
	e.waitsForItsConsumer(c, create)
	e.restrictsWorkers(c, create, segments)
}

// waitsForItsConsumer makes a claim that the scheduler has bound to this worker, on which node b of
// the pair is.
func (e *env) waitsForItsConsumer(c client.Client, create func(...client.Object)) {
	e.t.Helper()
	var tp v1alpha1.TargetPair
	e.ok(harness.Wait(e.ctx, "node b is on this worker", func() (bool, string) {
		e.ok(e.api.Get(e.ctx, client.ObjectKey{Name: e.pair.Name}, &tp))
		tp.Spec.Nodes[1].Worker = nodeName
		err := e.api.Update(e.ctx, &tp)
		return err == nil, fmt.Sprint(err)
	}))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "default",
		Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": v1alpha1.DriverName, "volume.kubernetes.io/selected-node": nodeName}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("late"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("320Mi")}}}}
	create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: v1alpha1.DriverName,
		Parameters: map[string]string{"cluster": operator.Cluster}, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}, claim)
	var pv corev1.PersistentVolume
	e.ok(harness.Wait(e.ctx, "the volume is made", func() (bool, string) {
		err := c.Get(e.ctx, client.ObjectKey{Name: "pvc-" + string(claim.UID)}, &pv)
		return err == nil, fmt.Sprint(err)
	}))
	var lu v1alpha1.LogicalUnit
	e.ok(e.api.Get(e.ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, &lu))
	want := map[string]v1alpha1.TopologyValue{corev1.LabelTopologyZone: "z1", corev1.LabelTopologyRegion: "r1"}
	if x := lu.Spec.Consumer; x == nil || x.Worker != nodeName || !maps.Equal(x.Topology, want) {
		e.t.Errorf("consumer %+v", x)
	}
	if lu.Spec.Placement.Home != "b" || lu.Status.PreferredNode != "b" || lu.Status.Owner != "b" || pv.Spec.NodeAffinity != nil || !strings.Contains(lu.Annotations[v1alpha1.AnnotationPlaced], "its node b is on worker "+nodeName) {
		e.t.Errorf("%+v, %+v, %q, %+v", lu.Spec.Placement, lu.Status, lu.Annotations[v1alpha1.AnnotationPlaced], pv.Spec.NodeAffinity)
	}
	e.ok(c.Delete(e.ctx, claim))
	_, err := e.plugin.Controller.DeleteVolume(e.ctx, &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle})
	e.ok(err)
}
