{{- define "gvDetails" -}}
{{- $gv := . -}}
## {{ $gv.GroupVersionString }}

{{ if $gv.Kinds -}}
Kinds: {{ range $i, $k := $gv.SortedKinds }}{{ if $i }}, {{ end }}{{ $gv.TypeForKind $k | markdownRenderTypeLink }}{{ end }}.

{{ end -}}
{{ range $gv.SortedTypes }}{{ template "type" . }}{{ end }}
{{- end -}}
