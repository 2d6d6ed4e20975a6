package charts

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pods that are rendered, by the name of what makes them.
func pods(objs []client.Object) map[string]*corev1.PodSpec {
	out := map[string]*corev1.PodSpec{}
	for _, d := range all[*appsv1.Deployment](objs) {
		out[d.Name] = &d.Spec.Template.Spec
	}
	for _, d := range all[*appsv1.DaemonSet](objs) {
		out[d.Name] = &d.Spec.Template.Spec
	}
	return out
}

// Every container requests memory: a container without a request is killed first. Gemel's servers
// have a limit, which their garbage collectors respect. A container that runs filesystem tools or
// serves disks of its own worker has no limit, and a priority for which the kubelet makes the
// kernel spare it.
func TestEveryContainerRequestsResources(t *testing.T) {
	limited := map[string]string{"gemel-operator/operator": "1Gi", "gemel-csi-controller/driver": "256Mi"}
	seen := 0
	for name, pod := range pods(mustRender(t, userspace(nil))) {
		for _, c := range pod.Containers {
			seen++
			if c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
				t.Errorf("%s, %s: requests %v", name, c.Name, c.Resources.Requests)
			}
			want := resourceOrZero(limited[name+"/"+c.Name])
			if got := c.Resources.Limits.Memory().String(); got != want || !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s, %s: limits %v, memory is to be %s", name, c.Name, c.Resources.Limits, want)
			}
			for _, e := range c.Env {
				if e.Name == "GOMEMLIMIT" {
					t.Errorf("%s, %s: GOMEMLIMIT=%s is no longer right when the limit is changed", name, c.Name, e.Value)
				}
			}
		}
		if node := name == "gemel-csi-node" || name == "gemel-holder"; node != (pod.PriorityClassName == "system-node-critical") {
			t.Errorf("%s has priority %s", name, pod.PriorityClassName)
		}
	}
	if seen != 8 {
		t.Errorf("%d containers", seen)
	}
	// An administrator's own reach the pods.
	objs := mustRender(t, map[string]any{"operator.resources.limits.memory": "3Gi", "controller.resources.limits.memory": "2Gi", "node.resources.requests.memory": "96Mi",
		"sidecars.resources.requests.memory": "64Mi"})
	operator, controller, node := pods(objs)["gemel-operator"], pods(objs)["gemel-csi-controller"], pods(objs)["gemel-csi-node"]
	for what, got := range map[string]string{
		"3Gi": container(t, operator, "operator").Resources.Limits.Memory().String(), "2Gi": container(t, controller, "driver").Resources.Limits.Memory().String(),
		"96Mi": container(t, node, "driver").Resources.Requests.Memory().String(), "64Mi": container(t, controller, "provisioner").Resources.Requests.Memory().String(),
	} {
		if got != what {
			t.Errorf("%s, not %s", got, what)
		}
	}
}

// resourceOrZero returns the quantity as it prints, "0" if it is missing.
func resourceOrZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}
