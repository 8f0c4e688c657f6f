{{- define "affidavit.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "affidavit.selector" -}}
app.kubernetes.io/name: affidavit
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "affidavit.labels" -}}
{{ include "affidavit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "affidavit.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* What all pods have in common. Nothing of ours talks to Kubernetes, so none gets a token. */}}
{{- define "affidavit.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccount.name }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "affidavit.container" -}}
image: {{ include "affidavit.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* The login goes in libpq's own variables, never into a URL, so a password may have any character. */}}
{{- define "affidavit.database" -}}
{{- $login := index .root.Values.database.logins .login -}}
- {name: DATABASE_URL, value: "postgresql://"}
- {name: PGHOST, value: {{ .root.Values.database.host | quote }}}
- {name: PGPORT, value: {{ .root.Values.database.port | quote }}}
- {name: PGDATABASE, value: {{ .root.Values.database.name | quote }}}
- {name: PGTARGETSESSIONATTRS, value: read-write}
- {name: PGSSLMODE, value: {{ .root.Values.database.sslmode }}}
{{- if .root.Values.database.caSecret }}
- {name: PGSSLROOTCERT, value: /etc/affidavit/postgresql/ca.crt}
{{- else if hasPrefix "verify-" .root.Values.database.sslmode }}
- {name: PGSSLROOTCERT, value: /etc/ssl/certs/ca-certificates.crt}
{{- end }}
- {name: PGUSER, value: {{ $login.user | quote }}}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ $login.existingSecret }}, key: {{ $login.key }}}}
- {name: AFFIDAVIT_DATA_DIR, value: /data}
{{- end }}

{{- define "affidavit.vault" -}}
- {name: AFFIDAVIT_PROVIDERS__VAULT, value: s3}
- {name: AFFIDAVIT_ARCHIVE__BUCKET, value: {{ .Values.vault.bucket | quote }}}
- {name: AFFIDAVIT_ARCHIVE__PREFIX, value: {{ .Values.vault.prefix | quote }}}
- {name: AWS_REGION, value: {{ .Values.vault.region | quote }}}
{{- with .Values.vault.endpoint }}
- {name: AWS_ENDPOINT_URL_S3, value: {{ . | quote }}}
{{- end }}
{{- with .Values.vault.existingSecret }}
{{- range tuple "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.vault.existingSecret }}, key: {{ . }}}}
{{- end }}
{{- end }}
- {name: AFFIDAVIT_AUDIT__SIGNING_KEY_FILE, value: /keys/signing.key}
- {name: AFFIDAVIT_AUDIT__SEAL_IN_SERVE, value: "false"}
{{- end }}

{{- define "affidavit.settings" -}}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "affidavit.mounts" -}}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- if .Values.database.caSecret }}
- {name: postgresql-ca, mountPath: /etc/affidavit/postgresql, readOnly: true}
{{- end }}
{{- end }}

{{- define "affidavit.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.database.caSecret }}
- name: postgresql-ca
  secret:
    secretName: {{ . }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}

{{/* Kubernetes lets the pod's group read the files of a secret, and the engine takes no key that others than its owner can read. */}}
{{- define "affidavit.key-copy" -}}
- name: signing-key
  {{- include "affidavit.container" . | nindent 2 }}
  command: [install, -m, "0600", /secret/signing.key, /secret/signing.key.pub, /keys]
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: signing-key, mountPath: /secret, readOnly: true}
    - {name: keys, mountPath: /keys}
{{- end }}

{{- define "affidavit.key-volumes" -}}
- name: signing-key
  secret:
    secretName: {{ .Values.signingKey.existingSecret }}
    defaultMode: 0440
- name: keys
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}

{{/* The archiver's login may do both: purge sessions, and erase what is past its retention. */}}
{{- define "affidavit.expiry" -}}
env:
  {{- include "affidavit.database" (dict "root" . "login" "archiver") | nindent 2 }}
  {{- include "affidavit.vault" . | nindent 2 }}
  {{- include "affidavit.settings" . | nindent 2 }}
resources: {{- toYaml .Values.expiry.resources | nindent 2 }}
volumeMounts:
  {{- include "affidavit.mounts" . | nindent 2 }}
  - {name: keys, mountPath: /keys}
{{- end }}

{{/* The port that a URL names; without one that of its scheme, or of the service behind it. */}}
{{- define "affidavit.port" -}}
{{- $host := (urlParse .url).host -}}
{{- if regexMatch ":[0-9]+$" $host }}{{ regexFind "[0-9]+$" $host }}{{ else }}{{ .default }}{{ end }}
{{- end }}
