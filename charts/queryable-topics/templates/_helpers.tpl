{{- define "queryable-topics.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* 40 characters at most, so that what is added to it stays a name. */}}
{{- define "queryable-topics.fullname" -}}
{{- $name := include "queryable-topics.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Of objects that are not in a namespace: two releases of one name must not meet. */}}
{{- define "queryable-topics.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "queryable-topics.fullname" .) }}
{{- end }}

{{- define "queryable-topics.selector" -}}
app.kubernetes.io/name: {{ include "queryable-topics.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "queryable-topics.labels" -}}
{{ include "queryable-topics.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: queryable-topics
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Of what `helm test` makes: not the operator's, or its Service would lead there too. */}}
{{- define "queryable-topics.testLabels" -}}
{{- include "queryable-topics.labels" . | replace "component: operator" "component: test" }}
{{- end }}

{{- define "queryable-topics.serviceAccountName" -}}
{{- default (.Values.serviceAccount.create | ternary (include "queryable-topics.fullname" .) "default") .Values.serviceAccount.name }}
{{- end }}

{{- define "queryable-topics.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* What all pods of the chart have in common: those of the operator and of `helm test`. */}}
{{- define "queryable-topics.pod" -}}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "queryable-topics.container" -}}
image: {{ include "queryable-topics.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What belongs to one revision of a view, wherever resources are looked for. */}}
{{- define "queryable-topics.nodeSelector" -}}
matchLabels:
  app.kubernetes.io/managed-by: queryable-topics-operator
matchExpressions:
  - {key: queryabletopics.io/revision, operator: Exists}
{{- end }}

{{- define "queryable-topics.nodeNamespaces" -}}
{{- if .Values.watchNamespaces }}
matchNames: {{- toYaml .Values.watchNamespaces | nindent 2 }}
{{- else }}
any: true
{{- end }}
{{- end }}

{{- define "queryable-topics.nodeRelabelings" -}}
- sourceLabels: [__meta_kubernetes_{{ . }}_label_queryabletopics_io_view]
  targetLabel: view
- sourceLabels: [__meta_kubernetes_{{ . }}_label_queryabletopics_io_revision]
  targetLabel: revision
- sourceLabels: [__meta_kubernetes_pod_label_queryabletopics_io_tls]
  regex: "true"
  targetLabel: __scheme__
  replacement: https
{{- end }}

{{/* The rest of a pod of `helm test`: the context, the check's name and its CHECKS. */}}
{{- define "queryable-topics.testPod" -}}
{{- $root := first . }}
{{- include "queryable-topics.pod" $root }}
restartPolicy: Never
containers:
  - name: check
    {{- include "queryable-topics.container" $root | nindent 4 }}
    command: [python, -c]
    args:
      - |
        {{- $root.Files.Get "files/check.py" | nindent 8 }}
      - {{ index . 1 }}
    env:
      - {name: CHECKS, value: {{ index . 2 | toJson | quote }}}
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 128Mi}}
{{- end }}
