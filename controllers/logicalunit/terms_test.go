package logicalunit

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// The workers that a LUN is for are restored from its labels, however many there are, and a target
// accepts the labels.
func TestTermsAreKeptOnTheDisks(t *testing.T) {
	most := func() (out []v1alpha1.TopologyTerm) {
		for i := range 64 {
			out = append(out, v1alpha1.TopologyTerm{MatchLabels: map[string]v1alpha1.TopologyValue{
				"example.com/" + strings.Repeat("k", 290): v1alpha1.TopologyValue(fmt.Sprintf("%063d", i))}})
		}
		return out
	}
	for name, terms := range map[string][]v1alpha1.TopologyTerm{
		"none": nil,
		"one":  {{MatchLabels: map[string]v1alpha1.TopologyValue{"topology.kubernetes.io/zone": "a"}}},
		"two":  {{MatchLabels: map[string]v1alpha1.TopologyValue{"zone": "a", "rack": "1"}}, {MatchLabels: map[string]v1alpha1.TopologyValue{"zone": "b"}}},
		"most": most(),
	} {
		labels := map[string]string{LabelObject: "lun-1", LabelCluster: "c"}
		setTerms(labels, terms)
		for k, v := range labels {
			if len(k)+len(v) > 1024 {
				t.Errorf("%s: %s has %d bytes", name, k, len(v))
			}
		}
		if len(labels) > 64-16 { // of others
			t.Errorf("%s: %d labels", name, len(labels))
		}
		lu, err := FromDisk("p", &targetv1.LUN{Uuid: "u", Labels: labels})
		if err != nil || !equality.Semantic.DeepEqual(lu.Spec.AccessibleFrom, terms) {
			t.Errorf("%s: %+v, %v", name, lu, err)
		}
	}
	labels := map[string]string{LabelObject: "lun-1", LabelCluster: "c"}
	setTerms(labels, most())
	delete(labels, LabelTerms+"3")
	if _, err := FromDisk("p", &targetv1.LUN{Uuid: "u", Labels: labels}); err == nil || !strings.Contains(err.Error(), LabelTerms) {
		t.Error(err)
	}
}
