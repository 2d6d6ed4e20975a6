package charts

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Each way of attaching gets what it needs: the kernel's the worker's first process and devices,
// userspace the holders as well.
func TestWaysOfAttaching(t *testing.T) {
	for mode, holder := range map[string]bool{"": false, "kernel": false, "userspace": true, "auto": true} {
		set, want := map[string]any{"node.attach": mode}, mode
		if mode == "" {
			set, want = nil, "kernel" // userspace has to be requested
		}
		objs := mustRender(t, set)
		spec := &one[*appsv1.DaemonSet](t, objs, "gemel-csi-node").Spec.Template.Spec
		driver := container(t, spec, "driver")
		if !slices.Contains(driver.Args, "--attach="+want) {
			t.Errorf("%s: %v", mode, driver.Args)
		}
		// Without hostPID /proc/1 is the plugin itself, and it would configure its own container.
		if !spec.HostPID || spec.HostNetwork || !*driver.SecurityContext.Privileged {
			t.Errorf("%s: %+v", mode, spec)
		}
		for path, propagation := range map[string]corev1.MountPropagationMode{"/dev": "", "/var/lib/kubelet": corev1.MountPropagationBidirectional} {
			i := slices.IndexFunc(driver.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
			if i < 0 {
				t.Fatalf("%s: %s is not mounted", mode, path)
			}
			if p := driver.VolumeMounts[i].MountPropagation; propagation != "" && (p == nil || *p != propagation) {
				t.Errorf("%s: what is mounted below %s does not reach the kubelet", mode, path)
			}
		}
		if got := slices.Contains(driver.Args, "--holder-agent=/var/lib/gemel/agent.sock"); got != holder {
			t.Errorf("%s: %v", mode, driver.Args)
		}
		if got := slices.ContainsFunc(all[*appsv1.DaemonSet](objs), func(d *appsv1.DaemonSet) bool { return d.Name == "gemel-holder" }); got != holder {
			t.Errorf("%s: holders: %v", mode, got)
		}
	}
}

// hosts answers the chart's lookup.
type hosts struct{ dynamic.Interface }

func (h hosts) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return h.Resource(v1alpha1.GroupVersion.WithResource("hosts")), false, nil
}

// The way of attaching is not changed under volumes: their holders would end.
func TestUpgradeKeepsTheWayOfAttaching(t *testing.T) {
	host := func(name, mode string, attached int32) *v1alpha1.Host {
		return &v1alpha1.Host{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Host"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.HostSpec{AttachMode: mode}, Status: v1alpha1.HostStatus{Attached: attached}}
	}
	notes := func(mode string, h ...*v1alpha1.Host) (string, error) {
		var objs []runtime.Object
		for _, x := range h {
			objs = append(objs, x)
		}
		client := fake.NewSimpleDynamicClient(scheme, objs...)
		capabilities := *chartutil.DefaultCapabilities
		capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), "gemel.storage/v1alpha1/Host")
		values, err := chartutil.ToRenderValues(load(t), nested(map[string]any{"node.attach": mode}),
			chartutil.ReleaseOptions{Name: "gemel", Namespace: Namespace, IsUpgrade: true, Revision: 2}, &capabilities)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (engine.Engine{Strict: true}).Render(load(t), values); err != nil {
			t.Errorf("as with helm template and --dry-run, which see no cluster: %v", err)
		}
		files, err := engine.RenderWithClientProvider(load(t), values, hosts{client})
		return files["gemel/templates/NOTES.txt"], err
	}
	for mode, other := range map[string]string{"kernel": "Userspace", "userspace": "Kernel"} {
		if _, err := notes(mode, host("idle", other, 0), host("same", strings.ToUpper(mode[:1])+mode[1:], 3)); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if _, err := notes(mode, host("idle", other, 0), host("w7", other, 2)); err == nil || !strings.Contains(err.Error(), "worker w7") || !strings.Contains(err.Error(), "drain it") {
			t.Errorf("%s: volumes lose what holds them: %v", mode, err)
		}
		if text, err := notes("auto", host("w7", other, 2)); err != nil || !strings.Contains(text, "node.attach=auto") {
			t.Errorf("auto: %s, %v", text, err)
		}
	}
}

// The notes after the installation name the chosen way of attaching.
func TestNotesNameTheWayOfAttaching(t *testing.T) {
	for _, mode := range []string{"kernel", "userspace", "auto"} {
		values, err := chartutil.ToRenderValues(load(t), nested(map[string]any{"node.attach": mode}),
			chartutil.ReleaseOptions{Name: "gemel", Namespace: Namespace, IsInstall: true, Revision: 1}, chartutil.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		files, err := (engine.Engine{Strict: true}).Render(load(t), values)
		if text := files["gemel/templates/NOTES.txt"]; err != nil || !strings.Contains(text, "(node.attach="+mode+")") {
			t.Errorf("%s: %s, %v", mode, text, err)
		}
	}
}
