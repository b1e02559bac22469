{{- define "reconsume.name" -}}
{{ printf "%s-%s" .root.Release.Name .part | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "reconsume.selector" -}}
app.kubernetes.io/name: reconsume-{{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "reconsume.labels" -}}
{{ include "reconsume.selector" . }}
app.kubernetes.io/part-of: reconsume
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "reconsume.image" -}}
{{- if .image.digest }}
{{- .image.repository }}@{{ .image.digest }}
{{- else }}
{{- .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "reconsume.container" -}}
runAsNonRoot: true
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "reconsume.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "reconsume.name" . }}
  labels:
    {{- include "reconsume.labels" . | nindent 4 }}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .persistence.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .persistence.size }}
{{- end }}

{{- define "reconsume.mounts" -}}
- name: reconsume-config
  mountPath: /etc/reconsume
  readOnly: true
{{- range .Values.secrets }}
- name: reconsume-secret-{{ . | replace "." "-" }}
  mountPath: /etc/reconsume-secrets/{{ . }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "reconsume.volumes" -}}
- name: reconsume-config
  configMap:
    name: {{ .Values.configMap | default (include "reconsume.name" (dict "root" . "part" "config")) }}
{{- range .Values.secrets }}
- name: reconsume-secret-{{ . | replace "." "-" }}
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}
