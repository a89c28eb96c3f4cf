{{- define "gpu-dra.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* At most 40 characters: what is appended must fit into 63. */}}
{{- define "gpu-dra.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "gpu-dra.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gpu-dra.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Cluster-scoped objects also carry the namespace: releases of one name in two namespaces must not meet. */}}
{{- define "gpu-dra.clusterName" -}}
{{- if or (not .Release.Namespace) (eq .Release.Namespace (include "gpu-dra.fullname" .)) -}}
{{- include "gpu-dra.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace (include "gpu-dra.fullname" .) -}}
{{- end -}}
{{- end }}

{{- define "gpu-dra.plugin" -}}
{{ include "gpu-dra.fullname" . }}-kubelet-plugin
{{- end }}

{{- define "gpu-dra.controller" -}}
{{ include "gpu-dra.fullname" . }}-controller
{{- end }}

{{- define "gpu-dra.webhook" -}}
{{ include "gpu-dra.fullname" . }}-webhook
{{- end }}

{{/* One that cert-manager makes has another name than Helm's own: neither takes over what the other has made. */}}
{{- define "gpu-dra.webhookSecret" -}}
{{ include "gpu-dra.webhook" . }}{{ if ne .Values.webhook.certificates "self-managed" }}-certificate{{ end }}
{{- end }}

{{/* Secrets that cert-manager made for us, with commas between them. */}}
{{- define "gpu-dra.leftSecrets" -}}
{{- if and .Values.webhook.install (ne .Values.webhook.certificates "self-managed") -}}
{{ include "gpu-dra.webhookSecret" . }}{{ if not .Values.webhook.issuerRef }},{{ include "gpu-dra.webhook" . }}-authority{{ end }}
{{- end -}}
{{- end }}

{{- define "gpu-dra.cleanup" -}}
{{ include "gpu-dra.fullname" . }}-cleanup
{{- end }}

{{- define "gpu-dra.test" -}}
{{ include "gpu-dra.fullname" . }}-test
{{- end }}

{{- define "gpu-dra.pluginAccount" -}}
{{- default (include "gpu-dra.plugin" .) .Values.serviceAccounts.kubeletPlugin -}}
{{- end }}

{{- define "gpu-dra.controllerAccount" -}}
{{- default (include "gpu-dra.controller" .) .Values.serviceAccounts.controller -}}
{{- end }}

{{/* Whether ComputeDomains are kept: "yes" or nothing. */}}
{{- define "gpu-dra.domains" -}}
{{- if and (eq .Values.publisher "controller") (eq (include "gpu-dra.gate" (list . "ComputeDomains")) "true") -}}yes{{- end -}}
{{- end }}

{{/*
Whether the definition of ComputeDomains is of this release: "yes" or nothing. Where ours are not kept it is NVIDIA's own
driver's, where that is; but what this release has installed stays, for with a definition all its objects go.
*/}}
{{- define "gpu-dra.domainDefinition" -}}
{{- if include "gpu-dra.domains" . -}}
yes
{{- else -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "computedomains.resource.nvidia.com" -}}
{{- $of := dig "metadata" "annotations" dict $there -}}
{{- if and (eq (get $of "meta.helm.sh/release-name") .Release.Name) (eq (get $of "meta.helm.sh/release-namespace") .Release.Namespace) -}}yes{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether daemons of ComputeDomains are made: "yes" or nothing. */}}
{{- define "gpu-dra.imexDaemons" -}}
{{- $host := eq (include "gpu-dra.gate" (list . "HostManagedIMEXDaemon")) "true" -}}
{{- if and (include "gpu-dra.domains" .) (not $host) -}}yes{{- end -}}
{{- end }}

{{- define "gpu-dra.imexDaemonAccount" -}}
{{- default (printf "%s-imex-daemon" (include "gpu-dra.fullname" . | trunc 51 | trimSuffix "-")) .Values.serviceAccounts.imexDaemon -}}
{{- end }}

{{- define "gpu-dra.pluginUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "gpu-dra.pluginAccount" . }}
{{- end }}

{{- define "gpu-dra.controllerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "gpu-dra.controllerAccount" . }}
{{- end }}

{{- define "gpu-dra.cleanupUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "gpu-dra.cleanup" . }}
{{- end }}

{{- define "gpu-dra.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpu-dra.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Those of pods come from here too: no chart version, or every release would restart every plugin. */}}
{{- define "gpu-dra.labels" -}}
{{ include "gpu-dra.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpu-dra.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "gpu-dra.stateDir" -}}
{{ .Values.kubeletPlugin.kubeletRoot }}/plugins/{{ .Values.driverName }}
{{- end }}

{{- define "gpu-dra.policy" -}}
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
{{- with .Values.policy }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Whether SecurityContextConstraints are made, as on OpenShift: "yes" or nothing. */}}
{{- define "gpu-dra.constraints" -}}
{{- $wanted := .Values.openshift.securityContextConstraints -}}
{{- if or (eq $wanted "always") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}yes{{- end -}}
{{- end }}

{{/*
What containers of ours need that touch nothing of the node. OpenShift gives each namespace users of its own and refuses
pods that name another (constraint restricted-v2, the one that such containers have).
*/}}
{{- define "gpu-dra.harmless" -}}
runAsNonRoot: true
{{- if not (include "gpu-dra.constraints" .) }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gpu-dra.probes" -}}
# Long enough for a node on which the driver takes half a minute to answer.
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* The gates that were set, as `--feature-gates` wants them. */}}
{{- define "gpu-dra.featureGates" -}}
{{- $words := list -}}
{{- range $name, $on := .Values.featureGates -}}
{{- $words = append $words (printf "%s=%t" $name $on) -}}
{{- end -}}
{{- join "," $words -}}
{{- end }}

{{/* Whether a feature gate is on, "true" or "false": of a list of the context and the gate's name. */}}
{{- define "gpu-dra.gate" -}}
{{- $context := index . 0 -}}
{{- $name := index . 1 -}}
{{- $set := $context.Values.featureGates | default dict -}}
{{- if hasKey $set $name -}}
{{- get $set $name -}}
{{- else -}}
{{- get ($context.Files.Get "files/feature-gates.yaml" | fromYaml).defaults $name -}}
{{- end -}}
{{- end }}

{{/* Whether ServiceMonitors are made: "yes" or nothing. */}}
{{- define "gpu-dra.serviceMonitors" -}}
{{- $wanted := .Values.metrics.serviceMonitors -}}
{{- if or (eq $wanted "always") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}yes{{- end -}}
{{- end }}

{{/* Whether a label selector requirement (key, operator, values) holds for labels: "yes" or nothing. */}}
{{- define "gpu-dra.holds" -}}
{{- $has := hasKey .labels .key -}}
{{- $value := get .labels .key -}}
{{- if eq .operator "Exists" -}}{{- if $has -}}yes{{- end -}}
{{- else if eq .operator "DoesNotExist" -}}{{- if not $has -}}yes{{- end -}}
{{- else if eq .operator "In" -}}{{- if and $has (has $value .values) -}}yes{{- end -}}
{{- else if eq .operator "NotIn" -}}{{- if not (and $has (has $value .values)) -}}yes{{- end -}}
{{- else if eq .operator "Gt" -}}{{- if and $has (gt (int64 $value) (int64 (first .values))) -}}yes{{- end -}}
{{- else if eq .operator "Lt" -}}{{- if and $has (lt (int64 $value) (int64 (first .values))) -}}yes{{- end -}}
{{- end -}}
{{- end }}

{{/*
Whether a pod with a nodeSelector and an affinity may be on a node, "yes" or nothing: of a dictionary `node`, `selector`,
`affinity`.
*/}}
{{- define "gpu-dra.fits" -}}
{{- $labels := .node.metadata.labels | default dict -}}
{{- $fields := dict "metadata.name" .node.metadata.name -}}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" dict (.affinity | default dict) -}}
{{- $terms := list -}}
{{- if $required -}}{{- $terms = $required.nodeSelectorTerms | default list -}}{{- end -}}
{{- $fits := true -}}
{{- range $key, $value := .selector | default dict -}}
  {{- if ne (toString (get $labels $key)) (toString $value) -}}{{- $fits = false -}}{{- end -}}
{{- end -}}
{{- if $terms -}}
  {{- $any := false -}}
  {{- range $terms -}}
    {{- $all := true -}}
    {{- range .matchExpressions | default list -}}
      {{- if not (include "gpu-dra.holds" (merge (dict "labels" $labels) .)) -}}{{- $all = false -}}{{- end -}}
    {{- end -}}
    {{- range .matchFields | default list -}}
      {{- if not (include "gpu-dra.holds" (merge (dict "labels" $fields) .)) -}}{{- $all = false -}}{{- end -}}
    {{- end -}}
    {{- if and $all (or .matchExpressions .matchFields) -}}{{- $any = true -}}{{- end -}}
  {{- end -}}
  {{- if not $any -}}{{- $fits = false -}}{{- end -}}
{{- end -}}
{{- if $fits -}}yes{{- end -}}
{{- end }}

{{/*
The nodes on which the plugin would run, as JSON: {"nodes": [name…], "devicePlugin": [name…], "resources": [name…]}. The
second are those with GPUs of a device plugin to give, whole ones (nvidia.com/gpu), shared ones (nvidia.com/gpu.shared) or
MIG devices (nvidia.com/mig-…), and the third what these are called. Empty lists where Helm does not talk to a cluster.
*/}}
{{- define "gpu-dra.nodes" -}}
{{- $plugin := .Values.kubeletPlugin -}}
{{- $names := list -}}
{{- $taken := list -}}
{{- $resources := list -}}
{{- range (lookup "v1" "Node" "" "").items | default list -}}
  {{- if include "gpu-dra.fits" (dict "node" . "selector" $plugin.nodeSelector "affinity" $plugin.affinity) -}}
    {{- $names = append $names .metadata.name -}}
    {{- $name := .metadata.name -}}
    {{- range $resource, $amount := dig "status" "allocatable" dict . -}}
      {{- if and (or (hasPrefix "nvidia.com/gpu" $resource) (hasPrefix "nvidia.com/mig-" $resource)) (ne (toString $amount) "0") -}}
        {{- $taken = append $taken $name | uniq -}}
        {{- $resources = append $resources $resource | uniq -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- /* A dry run of the client alone gets no list at all. */ -}}
{{- $looked := not (empty (lookup "v1" "Node" "" "")) -}}
{{- dict "looked" $looked "nodes" $names "devicePlugin" $taken "resources" (sortAlpha $resources) | toJson -}}
{{- end }}

{{/*
Who else offers the same by DRA, as JSON: {"gpus": [namespace/name…], "domains": [namespace/name…], "claims":
[namespace/name…]}. The first are DaemonSets of NVIDIA's own driver that hand out GPUs, under the name that ours has or on
the same nodes, or of a release of ours with another name on the same nodes; the second those that keep ComputeDomains, as
ours would. The third, looked for at a first install, are claims whose GPUs NVIDIA's own driver gave, and which pods of a
driver that is gone may still use: its devices are called by numbers (gpu-0), ours by UUIDs. Empty where Helm does not talk to
a cluster. Source: the DaemonSet of NVIDIA's chart, where each part is a program in a container of its own.
*/}}
{{- define "gpu-dra.others" -}}
{{- $driver := .Values.driverName -}}
{{- $plugin := .Values.kubeletPlugin -}}
{{- $nodes := (lookup "v1" "Node" "" "").items | default list -}}
{{- $gpus := list -}}
{{- $domains := list -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items | default list -}}
  {{- $pod := .spec.template.spec -}}
  {{- $name := printf "%s/%s" .metadata.namespace .metadata.name -}}
  {{- $self := and (eq .metadata.namespace $.Release.Namespace) (eq (toString (dig "metadata" "annotations" "meta.helm.sh/release-name" "" .)) $.Release.Name) -}}
  {{- range $pod.containers | default list -}}
    {{- $words := join " " (concat (.command | default list) (.args | default list)) -}}
    {{- $nvidias := contains "gpu-kubelet-plugin" $words -}}
    {{- /* Of one name is another matter, and of this release is the one that goes (guard-upgrade.yaml). */ -}}
    {{- $ours := and (not $self) (has "gpu-dra-kubelet-plugin" (.command | default list)) (not (has (printf "--driver-name=%s" $driver) (.args | default list))) -}}
    {{- if and $nvidias (eq $driver "gpu.nvidia.com") -}}
      {{- $gpus = append $gpus $name -}}
    {{- else if or $nvidias $ours -}}
      {{- range $nodes -}}
        {{- $both := include "gpu-dra.fits" (dict "node" . "selector" $plugin.nodeSelector "affinity" $plugin.affinity) -}}
        {{- if and $both (include "gpu-dra.fits" (dict "node" . "selector" $pod.nodeSelector "affinity" $pod.affinity)) -}}
          {{- $gpus = append $gpus $name -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
    {{- if and (contains "compute-domain-kubelet-plugin" $words) (include "gpu-dra.domains" $) -}}{{- $domains = append $domains $name -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- $claims := list -}}
{{- if and .Release.IsInstall (eq $driver "gpu.nvidia.com") -}}
  {{- range (lookup "resource.k8s.io/v1" "ResourceClaim" "" "").items | default list -}}
    {{- $name := printf "%s/%s" .metadata.namespace .metadata.name -}}
    {{- range dig "status" "allocation" "devices" "results" list . -}}
      {{- if and (eq .driver $driver) (regexMatch "^gpu-([0-9]{1,4}|vfio-[0-9]+)(-mig-.+)?$" .device) -}}{{- $claims = append $claims $name -}}{{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- dict "gpus" (uniq $gpus) "domains" (uniq $domains) "claims" (uniq $claims) | toJson -}}
{{- end }}

{{/* What makes an admission policy refuse: of a list of the context and the policy's name. */}}
{{- define "gpu-dra.policyBinding" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ index . 1 }}
  labels:
    {{- include "gpu-dra.labels" (index . 0) | nindent 4 }}
spec:
  policyName: {{ index . 1 }}
  validationActions: [Deny]
{{- end }}

{{/* An account of ours adds no finalizer: an object that cannot go keeps its namespace, and the release, from going. */}}
{{- define "gpu-dra.noFinalizer" }}
  - expression: >-
      request.operation == 'DELETE' || !has(object.metadata.finalizers) || object.metadata.finalizers.all(one,
      request.operation == 'UPDATE' && has(oldObject.metadata.finalizers) && one in oldObject.metadata.finalizers)
    message: an account of the driver adds no finalizer here
{{- end }}

{{/* In an admission policy: that fields of an object's metadata, of a list, are as they were. */}}
{{- define "gpu-dra.unchanged" -}}
{{- $same := list -}}
{{- range . -}}
{{- $none := ternary "{}" "[]" (has . (list "labels" "annotations")) -}}
{{- $same = append $same (printf "(has(object.metadata.%s) ? object.metadata.%s : %s)\n      == (has(oldObject.metadata.%s) ? oldObject.metadata.%s : %s)" . . $none . . $none) -}}
{{- end -}}
{{- join "\n      && " $same -}}
{{- end }}

{{/* A condition: none of these fields is set. Of a list of where they are, and their names. A field that the API server
does not know is not set. */}}
{{- define "gpu-dra.none" -}}
{{- $where := first . -}}
{{- $unset := list -}}
{{- range rest . -}}
{{- $unset = append $unset (printf "!has(%s.%s)" $where .) -}}
{{- end -}}
{{- join " && " $unset -}}
{{- end }}

{{/* Resources of a container as a map of expressions: from name to amount, both text. */}}
{{- define "gpu-dra.amounts" -}}
{{- $amounts := list -}}
{{- range $name, $amount := . -}}
{{- $amounts = append $amounts (printf "'%s': '%s'" $name (toString $amount)) -}}
{{- end -}}
{{- printf "{%s}" (join ", " $amounts) -}}
{{- end }}

{{/* A regular expression: the selector of a class of a MIG profile, as the controller writes it. */}}
{{- define "gpu-dra.profileSelector" -}}
{{- $driver := .Values.driverName | replace "." "[.]" -}}
{{- printf "^device[.]driver == '%s' && device[.]attributes\\['%s'\\][.]type == 'mig' && device[.]attributes\\['%s'\\][.]profile == '[a-z0-9.+-]+'$" $driver $driver $driver -}}
{{- end }}
