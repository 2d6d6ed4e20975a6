// Package charts renders the Helm chart, and tests it: what it renders is what the API server
// takes, and may do no more than it needs.
package charts

import (
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Namespace is the one that a chart is rendered for here.
const Namespace = "gemel-system"

// Render is `helm template gemel DIR -n gemel-system` with the values that differ from the chart's:
// the text of each template that was rendered, by its path below the chart's parent.
func Render(dir string, values map[string]any) (map[string]string, error) {
	c, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "gemel", Namespace: Namespace, IsInstall: true, Revision: 1},
		chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return (engine.Engine{Strict: true}).Render(c, all)
}
