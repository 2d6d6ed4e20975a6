package v1alpha1

import "testing"

func term(kv ...string) TopologyTerm {
	t := TopologyTerm{MatchLabels: map[string]TopologyValue{}}
	for i := 0; i < len(kv); i += 2 {
		t.MatchLabels[kv[i]] = TopologyValue(kv[i+1])
	}
	return t
}

func TestWorkersThatReachTerms(t *testing.T) {
	terms := []TopologyTerm{term("zone", "a"), term("zone", "b", "rack", "1")}
	for name, c := range map[string]struct {
		terms  []TopologyTerm
		labels map[string]string
		want   bool
	}{
		"no terms":              {nil, nil, true},
		"no labels":             {terms, nil, false},
		"first":                 {terms, map[string]string{"zone": "a", "more": "x"}, true},
		"second":                {terms, map[string]string{"zone": "b", "rack": "1"}, true},
		"half of the second":    {terms, map[string]string{"zone": "b"}, false},
		"another value":         {terms, map[string]string{"zone": "b", "rack": "2"}, false},
		"another key":           {terms, map[string]string{"Zone": "a"}, false},
		"an empty value wanted": {[]TopologyTerm{term("zone", "")}, map[string]string{}, false},
	} {
		if got := Reached(c.terms, c.labels); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := TermsText(terms); got != "zone=a or rack=1, zone=b" {
		t.Error(got)
	}
	var many []TopologyTerm
	for range 9 {
		many = append(many, term("k", "v"))
	}
	if got := TermsText(many); len(got) > 80 || got[len(got)-9:] != "or others" {
		t.Error(got)
	}
	if m := terms[1].Labels(); len(m) != 2 || m["rack"] != "1" || m["zone"] != "b" {
		t.Error(m)
	}
}
