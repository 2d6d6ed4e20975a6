package doctor

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// hostNotReady: no volume can be attached to a worker.
func hostNotReady(x *exam) {
	for i := range x.Hosts {
		h := &x.Hosts[i]
		c, long := x.failing(h.Status.Conditions, v1alpha1.ConditionReady)
		if !long || !h.DeletionTimestamp.IsZero() {
			continue
		}
		x.add(kindHost, h.Name, Finding{Severity: Warning, Problem: "no volume can be attached to the worker; what is attached continues", Cause: c.Message, Evidence: []string{x.quote(c)},
			Procedure: []string{"install or start on the worker what the message names: kubectl describe host {name}", "see docs/workers.md#what-a-worker-needs"}})
	}
}

// hostNameTwice: two workers were made from one image. The pairs cannot distinguish them, and no
// LUN is mapped to either.
func hostNameTwice(x *exam) {
	first := map[string]string{}
	for i := range x.Hosts {
		h := &x.Hosts[i]
		iqn := strings.ToLower(h.Spec.IQN)
		if iqn == "" {
			continue
		}
		other, ok := first[iqn]
		if !ok {
			first[iqn] = h.Name
			continue
		}
		x.add(kindHost, h.Name, Finding{Severity: Warning, Problem: "two workers have the same iSCSI name", Cause: "the workers were made from one image", Evidence: []string{"Host " + other + " has the iSCSI name " + h.Spec.IQN + " too"},
			Procedure: []string{"give the second worker a machine-id of its own, empty its node.stateDir and restart its node plugin", "see docs/kubernetes.md#security"}})
	}
}

// silentAfter: the operator writes of each worker with LUNs when it last asked for the target port
// groups, every ten minutes.
const silentAfter = time.Hour

// operatorSilent: no status is written any more, so nothing here is of the present.
func operatorSilent(x *exam) {
	var last metav1.Time
	name := ""
	for i := range x.Hosts {
		h := &x.Hosts[i]
		for _, t := range h.Status.Targets {
			for _, n := range t.Nodes {
				if n.Sessions > 0 && n.LastRTPG != nil && n.LastRTPG.After(last.Time) {
					last, name = *n.LastRTPG, h.Name
				}
			}
		}
		for _, c := range h.Status.Conditions {
			if c.Type == v1alpha1.ConditionPathsComplete && c.Reason == v1alpha1.ReasonPathUnasked {
				return // it looks, and finds that hosts do not ask
			}
		}
	}
	if name == "" || x.age(last) < silentAfter {
		return
	}
	x.add(kindHost, name, Finding{Severity: Warning, Problem: "the operator does not write the status of objects any more: the other findings may be old, and others are missing", Cause: "the operator does not run, cannot write to the API server, or the clocks of this machine and of the target nodes differ",
		Evidence:  []string{"the newest request of any worker for target port groups in a status is of " + x.since(last)},
		Procedure: []string{"kubectl get pods -n " + x.Namespace + " -l app.kubernetes.io/component=operator, and the logs of these pods", "hosts and target nodes continue without the operator; see docs/kubernetes.md#what-happens-when-"}})
}
