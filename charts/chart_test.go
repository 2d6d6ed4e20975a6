package charts

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"helm.sh/helm/v3/pkg/chartutil"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// With any values, the API server accepts each manifest.
func TestEveryManifestIsAccepted(t *testing.T) {
	for name, set := range map[string]map[string]any{
		"least":         {},
		"storage class": {"storageClass.create": true, "storageClass.default": true, "storageClass.fsType": "ext4", "storageClass.pool": "fast"},
		"no snapshots":  {"sidecars.snapshots": false, "storageClass.create": true},
		"of 0.1.0":      {"node.registrar.image": "", "node.registrar.pullPolicy": "IfNotPresent"},
		"no CRDs":       {"crds.install": false, "policies.install": false},
		"other places":  {"node.kubeletDir": "/data/kubelet", "node.stateDir": "/data/gemel", "node.tolerations": []any{}},
		"kernel":        {"node.attach": "kernel"},
		"auto":          {"node.attach": "auto"},
		"one of each":   {"operator.replicas": 1, "controller.replicas": 1},
		"names with care": {"image.repository": "example.org:5000/x/gemel", "image.tag": "1.2.3", "storageClass.create": true,
			"storageClass.name": "on", "storageClass.cluster": "123"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, o := range mustRender(t, userspace(set)) {
				id := o.GetObjectKind().GroupVersionKind().Kind + " " + o.GetNamespace() + "/" + o.GetName()
				if seen[id] {
					t.Errorf("%s comes twice", id)
				}
				seen[id] = true
			}
		})
	}
}

// The error for a wrong value names the value and what is allowed.
func TestWrongValuesAreRefusedByName(t *testing.T) {
	for _, x := range []struct {
		set  map[string]any
		says []string
	}{
		{map[string]any{"node.attach": ""}, []string{"/node/attach", "'kernel', 'userspace', 'auto'"}},
		{map[string]any{"node.attach": "Kernel"}, []string{"/node/attach", "'kernel', 'userspace', 'auto'"}},
		{map[string]any{"node.attach": nil}, []string{"node", "attach"}},
		{userspace(map[string]any{"nodes.attach": "userspace"}), []string{"nodes"}},
		{userspace(map[string]any{"node.registrar.image": "example.org/registrar:v1"}), []string{"/node/registrar/image", "must be ''"}},
		{userspace(map[string]any{"node.registrar.img": "x"}), []string{"/node/registrar", "img"}},
		{userspace(map[string]any{"node.kubeletDir": "var/lib"}), []string{"/node/kubeletDir"}},
		{userspace(map[string]any{"node.maxVolumes": "many"}), []string{"/node/maxVolumes", "integer"}},
		{userspace(map[string]any{"node.ioDeadline": "soon"}), []string{"/node/ioDeadline"}},
		{userspace(map[string]any{"node.topologyKeys": "rack"}), []string{"/node/topologyKeys", "array"}},
		{userspace(map[string]any{"node.topologyKeys": []any{"a b"}}), []string{"/node/topologyKeys/0"}},
		{userspace(map[string]any{"node.topologyKeys": []any{"kubernetes.io/hostname"}}), []string{"/node/topologyKeys/0"}},
		{userspace(map[string]any{"node.topologyKeys": []any{"rack", "rack"}}), []string{"/node/topologyKeys"}},
		{userspace(map[string]any{"operator.replicas": -1}), []string{"/operator/replicas"}},
		{userspace(map[string]any{"controller.logLevel": "loud"}), []string{"/controller/logLevel"}},
		{userspace(map[string]any{"image.repository": ""}), []string{"/image/repository"}},
		{userspace(map[string]any{"image.pullPolicy": "Sometimes"}), []string{"/image/pullPolicy"}},
		{userspace(map[string]any{"sidecars.provisioner": ""}), []string{"/sidecars/provisioner"}},
		{userspace(map[string]any{"sidecars.livenessprobe": "x"}), []string{"/sidecars", "livenessprobe"}},
		{userspace(map[string]any{"sidecars.workers": 0}), []string{"/sidecars/workers"}},
		{userspace(map[string]any{"sidecars.timeout": "long"}), []string{"/sidecars/timeout"}},
		{userspace(map[string]any{"sidecars.retryIntervalMax": 30}), []string{"/sidecars/retryIntervalMax", "string"}},
		{userspace(map[string]any{"sidecars.kubeAPIQPS": "many"}), []string{"/sidecars/kubeAPIQPS", "integer"}},
		{userspace(map[string]any{"storageClass.fsType": "btrfs"}), []string{"/storageClass/fsType"}},
		{userspace(map[string]any{"storageClass.name": ""}), []string{"/storageClass/name"}},
		{userspace(map[string]any{"storageClass.volumeBindingMode": "Later"}), []string{"/storageClass/volumeBindingMode", "WaitForFirstConsumer"}},
		{userspace(map[string]any{"storageClass.pool": "Fast"}), []string{"/storageClass/pool"}},
		{userspace(map[string]any{"storageClass.cluster": "Main"}), []string{"/storageClass/cluster"}},
		{userspace(map[string]any{"crds.keep": true}), []string{"/crds", "keep"}},
		{userspace(map[string]any{"policies.install": "yes"}), []string{"/policies/install"}},
	} {
		_, err := render(t, x.set)
		if err == nil {
			t.Errorf("%v is taken", x.set)
			continue
		}
		for _, s := range x.says {
			if !strings.Contains(err.Error(), s) && !strings.Contains(err.Error(), strings.ReplaceAll(strings.TrimPrefix(s, "/"), "/", ".")) {
				t.Errorf("%v: %v does not name %s", x.set, err, s)
			}
		}
	}
}

// Every value has a rule in the schema, and every rule a value: a default that is not said cannot
// be found.
func TestSchemaKnowsEveryValue(t *testing.T) {
	c := load(t)
	schema, err := chartutil.ReadValues(c.Schema)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(path string, rule, value map[string]any)
	walk = func(path string, rule, value map[string]any) {
		props, _ := rule["properties"].(map[string]any)
		if props == nil {
			return
		}
		for k, v := range value {
			r, ok := props[k].(map[string]any)
			if !ok {
				t.Errorf("%s%s has no rule", path, k)
			} else if m, ok := v.(map[string]any); ok {
				walk(path+k+".", r, m)
			}
		}
		for k := range props {
			if _, ok := value[k]; !ok && path+k != "global" && path+k != "node.registrar" { // of Helm, and of 0.1.0
				t.Errorf("%s%s has no default", path, k)
			}
		}
	}
	walk("", schema, c.Values)
}

// The CRDs are those of config/, kept when the release goes, and can be left out.
func TestCRDs(t *testing.T) {
	crds := all[*apiextensionsv1.CustomResourceDefinition](mustRender(t, userspace(nil)))
	if len(crds) != 7 {
		t.Errorf("%d CRDs", len(crds))
	}
	for _, c := range crds {
		if c.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes with the release, and all objects with it", c.Name)
		}
	}
	if n := len(all[*apiextensionsv1.CustomResourceDefinition](mustRender(t, userspace(map[string]any{"crds.install": false})))); n != 0 {
		t.Errorf("%d CRDs", n)
	}
}

// What does not serve volumes runs as the user nobody, without privileges. There are two replicas
// of each: one works, and a drain leaves one.
func TestOperatorAndController(t *testing.T) {
	objs := mustRender(t, userspace(nil))
	for _, name := range []string{"gemel-operator", "gemel-csi-controller"} {
		d := one[*appsv1.Deployment](t, objs, name)
		spec := &d.Spec.Template.Spec
		if *d.Spec.Replicas < 2 || spec.PriorityClassName == "" || spec.Affinity == nil || spec.HostNetwork || spec.HostPID {
			t.Errorf("%s: %+v", name, d.Spec)
		}
		for _, c := range spec.Containers {
			s := c.SecurityContext
			if s == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
				!reflect.DeepEqual(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 || s.SeccompProfile == nil {
				t.Errorf("%s/%s may do more than it needs: %+v", name, c.Name, s)
			}
		}
		for _, v := range spec.Volumes {
			if v.EmptyDir == nil {
				t.Errorf("%s: volume %s", name, v.Name)
			}
		}
		b := one[*policyv1.PodDisruptionBudget](t, objs, name)
		if !reflect.DeepEqual(b.Spec.Selector, d.Spec.Selector) || b.Spec.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%+v", b.Spec)
		}
		for k, v := range d.Spec.Selector.MatchLabels {
			if d.Spec.Template.Labels[k] != v {
				t.Errorf("%s: the selector misses its pods: %s", name, k)
			}
		}
	}
	operator := one[*appsv1.Deployment](t, objs, "gemel-operator").Spec.Template.Spec
	if !slices.Contains(container(t, &operator, "operator").Args, "--leader-elect") {
		t.Error("two operators would work at once")
	}
	controller := one[*appsv1.Deployment](t, objs, "gemel-csi-controller").Spec.Template.Spec
	for name, image := range map[string]string{"provisioner": "csi-provisioner", "attacher": "csi-attacher", "resizer": "csi-resizer", "snapshotter": "csi-snapshotter"} {
		c := container(t, &controller, name)
		if !slices.Contains(c.Args, "--leader-election") {
			t.Errorf("two of %s would work at once", name)
		}
		if !strings.HasPrefix(c.Image, "registry.k8s.io/sig-storage/"+image+":v") {
			t.Errorf("%s is not the official image: %s", name, c.Image)
		}
	}
	without := one[*appsv1.Deployment](t, mustRender(t, userspace(map[string]any{"sidecars.snapshots": false})), "gemel-csi-controller").Spec.Template.Spec
	if hasContainer(&without, "snapshotter") {
		t.Error("the snapshotter runs without its CRDs")
	}
}

// The plugin registers itself, with the socket that it serves.
func TestNodePluginRegistersItself(t *testing.T) {
	node := one[*appsv1.DaemonSet](t, mustRender(t, userspace(nil)), "gemel-csi-node").Spec.Template.Spec
	if len(node.Containers) != 1 {
		t.Errorf("%+v", node.Containers)
	}
	driver := container(t, &node, "driver")
	for _, arg := range []string{"--kubelet-registry=/var/lib/kubelet/plugins_registry", "--endpoint=unix:///var/lib/kubelet/plugins/csi.gemel.storage/csi.sock"} {
		if !slices.Contains(driver.Args, arg) {
			t.Errorf("%v lacks %s", driver.Args, arg)
		}
	}
	for _, m := range driver.VolumeMounts {
		if !slices.ContainsFunc(node.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("%s is mounted, and is no volume", m.Name)
		}
	}
}

// The keys of an administrator are one flag; without keys, and with the values of a release that
// knew none, there is no flag.
func TestTopologyKeysAreAFlag(t *testing.T) {
	flags := func(set map[string]any) (out []string) {
		node := one[*appsv1.DaemonSet](t, mustRender(t, userspace(set)), "gemel-csi-node").Spec.Template.Spec
		for _, arg := range container(t, &node, "driver").Args {
			if strings.HasPrefix(arg, "--topology-keys") {
				out = append(out, arg)
			}
		}
		return out
	}
	for _, set := range []map[string]any{nil, {"node.topologyKeys": []any{}}, {"node.topologyKeys": nil}} {
		if got := flags(set); len(got) != 0 {
			t.Errorf("%v: %q", set, got)
		}
	}
	if got := flags(map[string]any{"node.topologyKeys": []any{"topology.example.com/rack", "row"}}); !slices.Equal(got, []string{"--topology-keys=topology.example.com/rack,row"}) {
		t.Errorf("%q", got)
	}
}

// Replacing the pod of holders ends volumes: nothing but a hand does it.
func TestHolderIsReplacedByHand(t *testing.T) {
	h := one[*appsv1.DaemonSet](t, mustRender(t, userspace(nil)), "gemel-holder")
	if h.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("%+v", h.Spec.UpdateStrategy)
	}
	if p := h.Spec.Template.Spec; p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		t.Error("it has a token that it does not use")
	}
}

func TestStorageClass(t *testing.T) {
	objs := mustRender(t, userspace(map[string]any{"storageClass.create": true, "storageClass.default": true, "storageClass.cluster": "prod"}))
	c := one[*storagev1.StorageClass](t, objs, "gemel")
	if c.Provisioner != v1alpha1.DriverName || c.Parameters[v1alpha1.ParamCluster] != "prod" || !*c.AllowVolumeExpansion ||
		c.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" {
		t.Errorf("%+v", c)
	}
	if s := one[*snapshotv1.VolumeSnapshotClass](t, objs, "gemel"); s.Driver != v1alpha1.DriverName {
		t.Errorf("%+v", s)
	}
	objs = mustRender(t, userspace(nil))
	if len(all[*storagev1.StorageClass](objs))+len(all[*snapshotv1.VolumeSnapshotClass](objs)) != 0 {
		t.Error("a class that was not requested")
	}
	for _, x := range []struct {
		mode any
		want storagev1.VolumeBindingMode
	}{{"WaitForFirstConsumer", storagev1.VolumeBindingWaitForFirstConsumer}, {"Immediate", storagev1.VolumeBindingImmediate}, {nil, storagev1.VolumeBindingImmediate}} {
		objs = mustRender(t, userspace(map[string]any{"storageClass.create": true, "storageClass.volumeBindingMode": x.mode}))
		if c := one[*storagev1.StorageClass](t, objs, "gemel"); c.VolumeBindingMode == nil || *c.VolumeBindingMode != x.want {
			t.Errorf("%v: %v", x.mode, c.VolumeBindingMode)
		}
	}
	objs = mustRender(t, userspace(map[string]any{"storageClass.create": true, "sidecars.snapshots": false}))
	if len(all[*snapshotv1.VolumeSnapshotClass](objs)) != 0 {
		t.Error("a snapshot class without snapshots")
	}
}

// Every policy is bound and denies: one that is not does nothing, and says nothing.
func TestPoliciesAreBound(t *testing.T) {
	objs := mustRender(t, userspace(nil))
	policies := all[*admissionv1.ValidatingAdmissionPolicy](objs)
	if len(policies) < 3 {
		t.Fatalf("%d policies", len(policies))
	}
	for _, p := range policies {
		b := one[*admissionv1.ValidatingAdmissionPolicyBinding](t, objs, p.Name)
		if b.Spec.PolicyName != p.Name || !slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) || *p.Spec.FailurePolicy != admissionv1.Fail {
			t.Errorf("%s: %+v", p.Name, b.Spec)
		}
	}
	off := mustRender(t, userspace(map[string]any{"policies.install": false}))
	if len(all[*admissionv1.ValidatingAdmissionPolicy](off)) != 0 {
		t.Error("policies that were switched off")
	}
}

// Every object with a namespace is in the namespace of the release, except the right to read the
// addresses of the API servers.
func TestObjectsAreInTheNamespaceOfTheRelease(t *testing.T) {
	for _, o := range mustRender(t, userspace(nil)) {
		if ns := o.GetNamespace(); ns != "" && ns != Namespace && (ns != "default" || !strings.HasPrefix(o.GetName(), "gemel-servers-")) {
			t.Errorf("%T %s/%s", o, ns, o.GetName())
		}
	}
}

// The limits of the sidecars are values, and each sidecar gets them by the names that it knows.
func TestSidecarsGetTheirLimits(t *testing.T) {
	objs := mustRender(t, map[string]any{"sidecars.workers": 7, "sidecars.timeout": "90s", "sidecars.retryIntervalMax": "1m", "sidecars.kubeAPIQPS": 8, "sidecars.kubeAPIBurst": 9})
	controller := pods(objs)["gemel-csi-controller"]
	for name, threads := range map[string]string{"provisioner": "worker-threads", "attacher": "worker-threads", "resizer": "workers", "snapshotter": "worker-threads"} {
		args := container(t, controller, name).Args
		for _, want := range []string{"--" + threads + "=7", "--timeout=90s", "--retry-interval-max=1m", "--kube-api-qps=8", "--kube-api-burst=9", "--csi-address=/csi/csi.sock", "--leader-election"} {
			if !slices.Contains(args, want) {
				t.Errorf("%s lacks %s: %v", name, want, args)
			}
		}
	}
}
