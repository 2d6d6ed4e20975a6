package kubectlgemel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/kubectlgemel/doctor"
)

var examinedAt = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// examined runs doctor on objects.
func examined(t *testing.T, c client.Client, output string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := (&Doctor{Client: c, Namespace: "gemel-system", Out: &out, Output: output, Now: func() time.Time { return examinedAt }}).Run(t.Context())
	return out.String(), err
}

// fitWorld is world with nothing wrong.
func fitWorld() map[string]client.Object {
	w := world()
	w["cluster"].(*v1alpha1.StorageCluster).Status.Conditions = is(v1alpha1.ConditionReady, true, "")
	p := w["pair"].(*v1alpha1.TargetPair)
	p.Status.Conditions = append(p.Status.Conditions, is(v1alpha1.ConditionInSync, true, "")...)
	p.Status.Nodes = []v1alpha1.NodeStatus{{Name: "a", Phase: "InSync"}, {Name: "b", Phase: "InSync"}}
	return w
}

// sickWorld has a pair with one copy and a LUN that was not made.
func sickWorld() map[string]client.Object {
	w := fitWorld()
	since := metav1.NewTime(examinedAt.Add(-3 * time.Hour))
	p := w["pair"].(*v1alpha1.TargetPair)
	p.Spec.Nodes = []v1alpha1.PairNode{{Name: "a", Worker: "worker-1"}, {Name: "b", Worker: "worker-2"}}
	p.Status.Nodes = []v1alpha1.NodeStatus{{Name: "a", Phase: "Alone"}, {Name: "b", Phase: "Unknown", Reason: "the node has no pod"}}
	meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionInSync, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDegraded,
		Message: "node a is Alone; node b: the node has no pod", LastTransitionTime: since})
	meta.SetStatusCondition(&w["lun"].(*v1alpha1.LogicalUnit).Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonNoRoom, Message: "pool default of StorageCluster main: no pair has 100Gi free: add a pair or make the disks larger", LastTransitionTime: since})
	return w
}

func TestDoctorPrintsWhatIsWrong(t *testing.T) {
	out, err := examined(t, clientOf(fitWorld()), "text")
	if err != nil || out != "nothing is wrong; examined: StorageClusters 1, TargetPairs 1, LogicalUnits 1, LogicalUnitSnapshots 0, LogicalUnitGroupSnapshots 0, Hosts 1\n" {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = examined(t, clientOf(sickWorld()), "text")
	if !errors.Is(err, ErrWrong) || ExitCode(err) != 1 {
		t.Error(err)
	}
	want := `CRITICAL  TargetPair/main-p0: only one node has all data of the pair: the loss of this node loses data
  cause      node b is Unknown: the node has no pod
  evidence   InSync is False since 2026-11-25T09:00:00Z (3h), Degraded: node a is Alone; node b: the node has no pod
             node a on worker-1 is Alone
             node b on worker-2 is Unknown: the node has no pod
  procedure  start node b again, the other node then copies its data to it: kubectl get pods -n gemel-system -o wide -l gemel.storage/pair=main-p0,gemel.storage/node=b
             if it ends again and again, its last message is in the reason: see docs/operations.md#a-node-that-ends-by-itself and docs/operations.md#a-disk-that-fails
             if its worker or disk is lost for good: kubectl patch targetpair main-p0 --type=merge -p '{"spec":{"replace":{"node":"b"}}}'; see docs/kubernetes.md#a-node-or-its-disk-is-lost-for-good

WARNING  LogicalUnit/lun-1: the LogicalUnit is not Ready
  cause      NoRoom: pool default of StorageCluster main: no pair has 100Gi free: add a pair or make the disks larger
  evidence   Ready is False since 2026-11-25T09:00:00Z (3h), NoRoom: pool default of StorageCluster main: no pair has 100Gi free: add a pair or make the disks larger
  procedure  kubectl describe lun lun-1
             add a pair (spec.pairs of the StorageCluster) or larger disks, or delete volumes and snapshots
             see docs/kubernetes.md#pools

1 Critical, 1 Warning, 0 Note; examined: StorageClusters 1, TargetPairs 1, LogicalUnits 1, LogicalUnitSnapshots 0, LogicalUnitGroupSnapshots 0, Hosts 1
`
	if out != want {
		t.Errorf("%s", out)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil || !strings.Contains(string(page), "```\n"+want+"```\n") {
		t.Errorf("docs/operations.md does not show this output: %v", err)
	}
}

// The names of the JSON fields are stable; no finding is an empty list.
func TestDoctorPrintsJSON(t *testing.T) {
	out, err := examined(t, clientOf(fitWorld()), "json")
	if err != nil || out != "[]\n" {
		t.Errorf("%v %q", err, out)
	}
	out, err = examined(t, clientOf(sickWorld()), "json")
	if !errors.Is(err, ErrWrong) {
		t.Error(err)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	for field, want := range map[string]string{"severity": "Critical", "rule": "SingleCopy", "object": "TargetPair/main-p0", "count": "1", "problem": "only one node", "cause": "node b is Unknown",
		"evidence": "[InSync is False", "procedure": `[start node b again`} {
		if !strings.HasPrefix(fmt.Sprint(list[0][field]), want) {
			t.Errorf("%s: %v", field, list[0][field])
		}
	}
	if len(list[0]) != 8 || strings.Contains(out, `\u003c`) {
		t.Errorf("%s", out)
	}
}

// Many objects of one trouble are one finding with the first names.
func TestDoctorPrintsManyAsOne(t *testing.T) {
	text := findingsText(&doctor.Objects{}, []doctor.Finding{{Severity: doctor.Note, Object: "Host/a", Count: 9, Others: []string{"b", "c"}, Problem: "p", Cause: "c", Evidence: []string{"e"}, Procedure: []string{"x"}}})
	if !strings.HasPrefix(text, "NOTE  Host/a, b, c and 6 more: p\n") {
		t.Error(text)
	}
}

// Objects are read in pages; if the first page is too old, all are read at once.
func TestDoctorReadsPages(t *testing.T) {
	expired := false
	lists := 0
	base := clientOf(nil).(client.WithWatch)
	c := interceptor.NewClient(base, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
		x, ok := l.(*v1alpha1.LogicalUnitList)
		if !ok {
			return c.List(ctx, l, opts...)
		}
		lists++
		o := (&client.ListOptions{}).ApplyOptions(opts)
		from, n := 0, int(o.Limit)
		if n == 0 {
			n = 1200
		}
		if o.Continue != "" {
			if _, err := fmt.Sscan(o.Continue, &from); err != nil {
				return err
			}
			if expired {
				return apierrors.NewResourceExpired("too old")
			}
		}
		if len(x.Items) > 0 || o.Continue != "" && n == 1200 {
			return errors.New("a page is read into another one")
		}
		for i := from; i < min(from+n, 1200); i++ {
			x.Items = append(x.Items, v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("lun-", i)}})
		}
		if from+n < 1200 {
			x.Continue = fmt.Sprint(from + n)
		}
		return nil
	}})
	for _, expired = range []bool{false, true} {
		lists = 0
		o, err := (&Doctor{Client: c}).read(t.Context())
		if err != nil || len(o.LUNs) != 1200 || o.LUNs[1199].Name != "lun-1199" || lists != 3 {
			t.Errorf("%v %v: %d LUNs in %d lists", expired, err, len(o.LUNs), lists)
		}
	}
}

// A script can tell trouble from a cluster that could not be examined.
func TestDoctorExitCodes(t *testing.T) {
	denied := interceptor.NewClient(clientOf(fitWorld()).(client.WithWatch), interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, l client.ObjectList, _ ...client.ListOption) error {
		if _, ok := l.(*v1alpha1.HostList); ok {
			return errors.New("denied")
		}
		return nil
	}})
	_, err := examined(t, denied, "text")
	if ExitCode(err) != 2 || !strings.Contains(err.Error(), "cannot examine the cluster: list Hosts: denied") {
		t.Error(err)
	}
	err = (&Doctor{Client: clientOf(fitWorld()), Out: brokenPipe{}}).Run(t.Context())
	if ExitCode(err) != 2 {
		t.Error(err)
	}
	for _, args := range [][]string{{"doctor", "--kubeconfig", "/does/not/exist"}, {"doctor", "-o", "yaml"}, {"doctor", "--nonsense"}, {"doctor", "x"}} {
		cmd := Command()
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); ExitCode(err) != 2 {
			t.Errorf("%v: %v", args, err)
		}
	}
	if ExitCode(nil) != 0 || ExitCode(ErrBroken) != 1 {
		t.Error("the codes of other commands have changed")
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
