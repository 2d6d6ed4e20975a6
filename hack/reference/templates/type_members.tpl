{{- define "type_members" -}}
{{- if eq .Name "metadata" -}}
as for every object of Kubernetes
{{- else -}}
{{ markdownRenderFieldDoc .Doc }}
{{- end -}}
{{- end -}}
