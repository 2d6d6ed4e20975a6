package logicalunit

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// LabelTerms begins the labels of a LUN on the disks that have the workers that it is for: the JSON
// of spec.accessibleFrom in parts, numbered from 0, because targets limit a label to 1024 bytes.
const LabelTerms = "gemel.storage/accessible-from."

// termsPart is the size of a part in bytes.
const termsPart = 900

func setTerms(labels map[string]string, terms []v1alpha1.TopologyTerm) {
	if len(terms) == 0 {
		return
	}
	var list []map[string]string
	for _, t := range terms {
		list = append(list, t.Labels())
	}
	raw, err := json.Marshal(list)
	if err != nil { // strings can always be marshalled
		panic(err)
	}
	for i := 0; len(raw) > 0; i++ {
		n := min(termsPart, len(raw))
		labels[LabelTerms+strconv.Itoa(i)], raw = string(raw[:n]), raw[n:]
	}
}

// termsOf are the terms in the labels of a LUN. Without all of them the object would be wrong for
// good, so labels that cannot be read are an error.
func termsOf(labels map[string]string) ([]v1alpha1.TopologyTerm, error) {
	var raw string
	for i := 0; ; i++ {
		part, ok := labels[LabelTerms+strconv.Itoa(i)]
		if !ok {
			break
		}
		raw += part
	}
	if raw == "" {
		return nil, nil
	}
	var list []map[string]v1alpha1.TopologyValue
	if err := json.Unmarshal([]byte(raw), &list); err != nil {
		return nil, fmt.Errorf("labels %s*: %w", LabelTerms, err)
	}
	var out []v1alpha1.TopologyTerm
	for _, m := range list {
		out = append(out, v1alpha1.TopologyTerm{MatchLabels: m})
	}
	return out, nil
}
