{{- define "gemel.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "gemel.labels" -}}
app.kubernetes.io/name: gemel
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- /* Not empty: group snapshots are on. The sidecar watches the kinds of the API as soon as the gate is on, and without them it never begins
to work: so what is missing is an error here, before anything is changed. An earlier release's values may lack the key. */ -}}
{{- define "gemel.groupSnapshots" -}}
{{- if get .Values.sidecars "groupSnapshots" }}
{{- if not .Values.sidecars.snapshots }}
{{- fail "sidecars.groupSnapshots: set sidecars.snapshots too: a group snapshot consists of snapshots" }}
{{- end }}
{{- range list "VolumeGroupSnapshot" "VolumeGroupSnapshotClass" "VolumeGroupSnapshotContent" }}
{{- if not ($.Capabilities.APIVersions.Has (printf "groupsnapshot.storage.k8s.io/v1/%s" .)) }}
{{- fail (printf "sidecars.groupSnapshots: the cluster does not serve %s of groupsnapshot.storage.k8s.io/v1: install the CRDs of external-snapshotter 8.6 or later, or set sidecars.groupSnapshots=false; with helm template, name what the cluster serves: --api-versions groupsnapshot.storage.k8s.io/v1/%s" . .) }}
{{- end }}
{{- end }}
true
{{- end }}
{{- end }}
{{- define "gemel.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {app.kubernetes.io/name: gemel, app.kubernetes.io/component: {{ . }}}
{{- end }}
{{- define "gemel.nonroot" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- /* Arguments of every sidecar: the context, and the name of its flag for calls at a time. An upgrade with
    --reuse-values has none of these values. */}}
{{- define "gemel.sidecarArgs" -}}
{{- $s := (index . 0).Values.sidecars -}}
- --csi-address=/csi/csi.sock
- --leader-election
- --timeout={{ default "60s" $s.timeout }}
- --{{ index . 1 }}={{ default 50 $s.workers }}
- --retry-interval-start=500ms
- --retry-interval-max={{ default "30s" $s.retryIntervalMax }}
- --kube-api-qps={{ default 50 $s.kubeAPIQPS }}
- --kube-api-burst={{ default 100 $s.kubeAPIBurst }}
{{- end }}
