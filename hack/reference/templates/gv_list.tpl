{{- define "gvList" -}}
{{- $groupVersions := . -}}
# Objects of the Kubernetes API

<!-- Generated from api/v1alpha1 by crd-ref-docs. Change the types, and run make generate. -->

Every field of every kind. [Gemel on Kubernetes](../kubernetes.md#objects) says who writes each object and what to do
with it.

{{ range $groupVersions }}{{ template "gvDetails" . }}{{ end }}
{{- end -}}
