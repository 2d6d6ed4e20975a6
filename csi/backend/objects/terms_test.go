package objects

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// termsOf makes terms of text: labels by commas, terms by bars.
func termsOf(text string) (out []v1alpha1.TopologyTerm) {
	if text == "" {
		return nil
	}
	for _, t := range strings.Split(text, "|") {
		m := map[string]v1alpha1.TopologyValue{}
		for _, l := range strings.Split(t, ",") {
			k, v, _ := strings.Cut(l, "=")
			m[k] = v1alpha1.TopologyValue(v)
		}
		out = append(out, v1alpha1.TopologyTerm{MatchLabels: m})
	}
	return out
}

// segmentsOf makes segments of text, as termsOf does; "*" is an empty one.
func segmentsOf(text string) (out []map[string]string) {
	for _, t := range strings.Split(text, "|") {
		if t == "*" {
			out = append(out, map[string]string{})
			continue
		}
		out = append(out, termsOf(t)[0].Labels())
	}
	return out
}

func textOf(terms []v1alpha1.TopologyTerm) string {
	var out []string
	for _, t := range terms {
		out = append(out, strings.ReplaceAll(t.String(), ", ", ","))
	}
	return strings.Join(out, "|")
}

// selector makes a term of allowedTopologies: "zone=a/b,rack=1".
func selector(text string) (s corev1.TopologySelectorTerm) {
	for _, l := range strings.Split(text, ",") {
		if k, v, ok := strings.Cut(l, "="); ok {
			s.MatchLabelExpressions = append(s.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{Key: k, Values: strings.Split(v, "/")})
		}
	}
	return s
}

func TestAllowedTopologiesAreFlattened(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"zone=a":                    "zone=a",
		"zone=a/b":                  "zone=a|zone=b",
		"zone=a/b,rack=1/2":         "rack=1,zone=a|rack=2,zone=a|rack=1,zone=b|rack=2,zone=b",
		"zone=a;region=r,rack=1":    "zone=a|rack=1,region=r",
		";zone=a":                   "zone=a", // a term without expressions
		"zone=a/b,rack=1,row=x/y/z": "rack=1,row=x,zone=a|rack=1,row=y,zone=a|rack=1,row=z,zone=a|rack=1,row=x,zone=b|rack=1,row=y,zone=b|rack=1,row=z,zone=b",
	} {
		var allowed []corev1.TopologySelectorTerm
		for _, s := range strings.Split(text, ";") {
			allowed = append(allowed, selector(s))
		}
		if got, err := flatten(allowed); err != nil || textOf(got) != want {
			t.Errorf("%q: %s, %v", text, textOf(got), err)
		}
	}
	// The combinations of a class are bounded before they are made.
	values := strings.Repeat("v/", 1000) + "v"
	if _, err := flatten([]corev1.TopologySelectorTerm{selector("a=" + values + ",b=" + values + ",c=" + values + ",d=" + values)}); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "allowedTopologies") {
		t.Error(err)
	}
}

func TestRestrictionsAreCombined(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"", "", ""},
		{"zone=a", "", "zone=a"},
		{"", "zone=a|zone=b", "zone=a|zone=b"},
		{"zone=a|zone=b", "zone=b|zone=c", "zone=b"},
		{"zone=a|zone=b", "rack=1", "rack=1,zone=a|rack=1,zone=b"},
		{"zone=a,rack=1|zone=b", "zone=a|zone=b,rack=2", "rack=1,zone=a|rack=2,zone=b"},
		{"zone=a|zone=a,rack=1", "rack=1", "rack=1,zone=a"}, // each once
		{"zone=a", "zone=b", "none"},
	} {
		got, err := combine(restriction{termsOf(c.a), "A"}, restriction{termsOf(c.b), "B"})
		if c.want == "none" {
			if !errors.Is(err, backend.ErrUnreachable) || !strings.Contains(err.Error(), "A and B") {
				t.Errorf("%+v: %+v, %v", c, got, err)
			}
			continue
		}
		if err != nil || textOf(got.terms) != c.want || (c.a != "" && c.b != "") != (got.by == "A and B") {
			t.Errorf("%+v: %s by %s, %v", c, textOf(got.terms), got.by, err)
		}
		// Workers that both allow are in the result, and no others.
		for _, labels := range []string{"zone=a", "zone=b", "zone=c", "zone=a,rack=1", "zone=a,rack=2", "zone=b,rack=1", "zone=b,rack=2", "rack=1", "row=1"} {
			m := termsOf(labels)[0].Labels()
			if both := v1alpha1.Reached(termsOf(c.a), m) && v1alpha1.Reached(termsOf(c.b), m); both != v1alpha1.Reached(got.terms, m) {
				t.Errorf("%+v: worker %s: %v", c, labels, both)
			}
		}
	}
}

func TestTermsFitSegments(t *testing.T) {
	for _, c := range []struct {
		terms, segments string
		want            fit
	}{
		{"zone=a", "zone=a", certain}, {"zone=a", "zone=a,rack=1", certain}, {"zone=a", "zone=b", apart}, {"zone=a", "zone=b|zone=a", certain},
		{"zone=a", "*", possible}, {"zone=a", "region=r", possible}, {"zone=a,rack=1", "zone=a", possible}, {"zone=a,rack=1", "zone=b", apart},
		{"zone=a|zone=b", "zone=c|zone=b", certain}, {"zone=a|rack=1", "zone=c", possible}, {"zone=a,rack=1", "rack=2|*", possible},
	} {
		if got := (restriction{terms: termsOf(c.terms)}).fits(segmentsOf(c.segments)); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestTooManyTermsAreRefused(t *testing.T) {
	list := func(n, labels, size int) (r restriction) {
		r.by = "StorageClass many (allowedTopologies)"
		for i := range n {
			term := v1alpha1.TopologyTerm{MatchLabels: map[string]v1alpha1.TopologyValue{}}
			for k := range labels {
				term.MatchLabels[fmt.Sprintf("%s%d", strings.Repeat("k", size), k)] = v1alpha1.TopologyValue(fmt.Sprint(i))
			}
			r.terms = append(r.terms, term)
		}
		return r
	}
	for _, r := range []restriction{list(64, 1, 300), list(1, 16, 300), {}} {
		if err := r.check(); err != nil {
			t.Error(err)
		}
	}
	for _, r := range []restriction{list(65, 1, 1), list(1, 17, 1), list(64, 2, 300)} {
		if err := r.check(); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "StorageClass many") || !strings.Contains(err.Error(), "name fewer") {
			t.Error(err)
		}
	}
}
