// Package charts renders the Helm chart, and tests it: what it renders is what the API server
// takes, and may do no more than it needs.
package charts

import (
	"slices"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Namespace is the one that a chart is rendered for here.
const Namespace = "gemel-system"

// Render is `helm template gemel DIR -n gemel-system` with the values that differ from the chart's:
// the text of each template that was rendered, by its path below the chart's parent. apis are
// served besides those of Kubernetes itself, as in --api-versions.
func Render(dir string, values map[string]any, apis ...string) (map[string]string, error) {
	c, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	capabilities := *chartutil.DefaultCapabilities
	capabilities.APIVersions = slices.Concat(capabilities.APIVersions, apis)
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "gemel", Namespace: Namespace, IsInstall: true, Revision: 1},
		&capabilities)
	if err != nil {
		return nil, err
	}
	return (engine.Engine{Strict: true}).Render(c, all)
}
