package charts

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For string
			Labels           map[string]string
			Annotations      map[string]string
		}
	}
}

// The alerts are as in their file, and may be left out.
func TestAlertsAreRendered(t *testing.T) {
	const api = "monitoring.coreos.com/v1"
	render := func(set map[string]any, apis ...string) (string, error) {
		t.Helper()
		files, err := Render("gemel", nested(set), apis...)
		for name, text := range files {
			if strings.HasSuffix(name, "/prometheusrule.yaml") {
				return strings.TrimSpace(text), err
			}
		}
		return "", err
	}
	for _, set := range []map[string]any{nil, {"prometheusRule": nil}} { // nil: the values of an earlier release
		if text, err := render(set, api); err != nil || text != "" {
			t.Errorf("%v: %q, %v", set, text, err)
		}
	}
	if _, err := render(map[string]any{"prometheusRule.enabled": true}); err == nil || !strings.Contains(err.Error(), "install the Prometheus operator") {
		t.Errorf("without the API: %v", err)
	}
	text, err := render(map[string]any{"prometheusRule.enabled": true, "prometheusRule.labels": map[string]any{"release": "prom"}}, api)
	if err != nil {
		t.Fatal(err)
	}
	var o struct {
		Kind     string
		Metadata struct{ Labels map[string]string }
		Spec     rules
	}
	if err := yaml.UnmarshalStrict([]byte(text), &struct {
		APIVersion, Kind string
		Metadata         map[string]any
		Spec             map[string]any
	}{}); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(text), &o); err != nil || o.Kind != "PrometheusRule" || o.Metadata.Labels["release"] != "prom" || o.Metadata.Labels["app.kubernetes.io/name"] == "" {
		t.Fatalf("%+v, %v", o, err)
	}
	source, err := exec.CommandContext(t.Context(), "grep", "-rhoE", `Name: "gemel_[a-z_]+"`, "--include=*.go", "../controllers").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`gemel_[a-z_]+`)
	n := 0
	for _, g := range o.Spec.Groups {
		for _, r := range g.Rules {
			n++
			if r.Alert == "" || r.For == "" || r.Labels["severity"] == "" || !strings.Contains(r.Annotations["summary"], "{{ $labels.") || r.Annotations["description"] == "" {
				t.Errorf("%+v", r)
			}
			found := names.FindAllString(r.Expr, -1)
			if len(found) == 0 {
				t.Errorf("%s: no metric", r.Alert)
			}
			for _, m := range found {
				if !strings.Contains(string(source), `Name: "`+m+`"`) {
					t.Errorf("%s: the operator has no metric %s", r.Alert, m)
				}
			}
		}
	}
	if n < 3 {
		t.Errorf("%d alerts", n)
	}
	file, err := os.ReadFile("gemel/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var own rules
	if err := yaml.Unmarshal(file, &own); err != nil || len(own.Groups) != len(o.Spec.Groups) {
		t.Errorf("the file: %+v, %v", own, err)
	}
}
