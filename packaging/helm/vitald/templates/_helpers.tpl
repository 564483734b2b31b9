{{- define "vitald.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "vitald.selectorLabels" -}}
app.kubernetes.io/name: vitald
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Not those of the publishers' pods, which the sweep selects. */ -}}
{{- define "vitald.sweepLabels" -}}
app.kubernetes.io/name: vitald-sweep
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vitald.labels" -}}
{{ include "vitald.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "vitald.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "vitald.config" -}}
{{- if .Values.configText -}}
{{ .Values.configText }}
{{- else -}}
{{ include "vitald.toml" .Values.config }}
{{- end -}}
{{- end -}}

{{- /* A table as TOML. Helm reads every number of a values file as a floating-point one. */ -}}
{{- define "vitald.toml" -}}
{{- $text := toToml . -}}
{{- with regexFind "(?m)^ *([^ ]+) = [0-9.]+e[+][0-9]+$" $text -}}
{{- fail (printf "config: %s: Helm cannot pass on so large a number: use configText" (trim .)) -}}
{{- end -}}
{{ regexReplaceAll "(?m) = (-?[0-9]+)[.]0$" $text " = ${1}" }}
{{- end -}}

{{- /* The configuration of the publisher; its folders are those that the pod mounts. */ -}}
{{- define "vitald.publishConfig" -}}
{{- $impersonate := eq .Values.rbac.mode "impersonate" -}}
{{- $kubernetes := merge (dict "enabled" true "impersonate" $impersonate) .Values.publisher.kubernetes -}}
{{- $own := dict "paths" (dict "runtime" "/run/vitald") "publish" (dict "state" "/var/lib/vitald-publish") "kubernetes" $kubernetes -}}
{{ include "vitald.toml" (merge $own .Values.publisher.config) }}
{{- end -}}

{{- /* The name of the node; and no name of a pod, so that series outlive it. */ -}}
{{- define "vitald.relabelings" -}}
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: instance
- action: labeldrop
  regex: pod
{{- end -}}

{{- /* Of the chart and a name: rules or a dashboard, with links to the site's documentation. */ -}}
{{- define "vitald.monitoringFile" -}}
{{- $chart := index . 0 -}}
{{- $chart.Files.Get (printf "files/%s.json" (index . 1)) | replace "https://docs.example.com/vitald" (trimSuffix "/" $chart.Values.docsUrl) -}}
{{- end -}}

{{- define "vitald.checkValues" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository: is required: the name of your image, for example registry.example.com/vitald (docs/kubernetes.md, Build the image)" -}}
{{- end -}}
{{- $least := get (dict "admissionPolicy" "1.30.0" "impersonate" "1.36.0") .Values.rbac.mode -}}
{{- if and .Values.publisher.enabled $least (semverCompare (printf "<%s-0" $least) .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "rbac.mode=%s: needs Kubernetes %s or later, this is %s: choose another rbac.mode" .Values.rbac.mode $least .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.publisher.enabled (eq .Values.rbac.mode "impersonate") (ne .Values.publisher.kubernetes.taint "off") -}}
{{- fail "publisher.kubernetes.taint: must be \"off\" with rbac.mode=impersonate, because no node may change its own taints" -}}
{{- end -}}
{{- $recovery := get (get .Values.publisher.config "recovery" | default dict) "mode" -}}
{{- if and (has "hyperpod" .Values.publisher.kubernetes.conditions) (ne $recovery "automatic") -}}
{{- fail "publisher.kubernetes.conditions: \"hyperpod\" orders repairs from SageMaker: set publisher.config.recovery.mode to automatic" -}}
{{- end -}}
{{- if and .Values.nodeReadinessRule.enabled (not .Values.publisher.enabled) -}}
{{- fail "nodeReadinessRule.enabled: needs publisher.enabled, which writes the condition; without it, all nodes would be closed" -}}
{{- end -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- if $namespace -}}
{{- $enforce := get ($namespace.metadata.labels | default dict) "pod-security.kubernetes.io/enforce" -}}
{{- if and $enforce (ne $enforce "privileged") -}}
{{- fail (printf "namespace %s: pod-security.kubernetes.io/enforce=%s refuses all host paths: set it to privileged, or install into another namespace" .Release.Namespace $enforce) -}}
{{- end -}}
{{- end -}}
{{- end -}}
