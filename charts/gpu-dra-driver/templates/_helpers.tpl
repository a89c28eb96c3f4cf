{{- define "gpu-dra.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* At most 40 characters, so that names with a suffix fit into 63. */}}
{{- define "gpu-dra.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "gpu-dra.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gpu-dra.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Where the objects are; Helm keeps the release itself in the namespace of --namespace. */}}
{{- define "gpu-dra.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{/* Names of cluster-scoped objects contain the namespace, so that releases with the same name in two namespaces differ. */}}
{{- define "gpu-dra.clusterName" -}}
{{- $namespace := include "gpu-dra.namespace" . -}}
{{- if or (not $namespace) (eq $namespace (include "gpu-dra.fullname" .)) -}}
{{- include "gpu-dra.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" $namespace (include "gpu-dra.fullname" .) -}}
{{- end -}}
{{- end }}

{{- define "gpu-dra.plugin" -}}
{{ include "gpu-dra.fullname" . }}-kubelet-plugin
{{- end }}

{{- define "gpu-dra.controller" -}}
{{ include "gpu-dra.fullname" . }}-controller
{{- end }}

{{- define "gpu-dra.ui" -}}
{{ include "gpu-dra.fullname" . }}-ui
{{- end }}

{{- define "gpu-dra.webhook" -}}
{{ include "gpu-dra.fullname" . }}-webhook
{{- end }}

{{/* cert-manager's Secret has another name than Helm's, so that neither takes over the other's. */}}
{{- define "gpu-dra.webhookSecret" -}}
{{ include "gpu-dra.webhook" . }}{{ if ne .Values.webhook.certificates "self-managed" }}-certificate{{ end }}
{{- end }}

{{/* Secrets that cert-manager created for this release, separated by commas. */}}
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

{{/* Whether this release manages ComputeDomains: "yes" or nothing. */}}
{{- define "gpu-dra.domains" -}}
{{- if and (eq .Values.publisher "controller") (eq (include "gpu-dra.gate" (list . "ComputeDomains")) "true") -}}yes{{- end -}}
{{- end }}

{{/*
Whether the definition of ComputeDomains belongs to this release: "yes" or nothing. If this release does not manage
ComputeDomains, NVIDIA's own driver may own the definition. A definition that this release has installed stays, because
deleting it deletes all domains.
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

{{/* Whether the driver runs daemons for ComputeDomains: "yes" or nothing. */}}
{{- define "gpu-dra.imexDaemons" -}}
{{- $host := eq (include "gpu-dra.gate" (list . "HostManagedIMEXDaemon")) "true" -}}
{{- if and (include "gpu-dra.domains" .) (not $host) -}}yes{{- end -}}
{{- end }}

{{- define "gpu-dra.imexDaemonAccount" -}}
{{- default (printf "%s-imex-daemon" (include "gpu-dra.fullname" . | trunc 51 | trimSuffix "-")) .Values.serviceAccounts.imexDaemon -}}
{{- end }}

{{- define "gpu-dra.pluginUser" -}}
system:serviceaccount:{{ include "gpu-dra.namespace" . }}:{{ include "gpu-dra.pluginAccount" . }}
{{- end }}

{{- define "gpu-dra.controllerUser" -}}
system:serviceaccount:{{ include "gpu-dra.namespace" . }}:{{ include "gpu-dra.controllerAccount" . }}
{{- end }}

{{- define "gpu-dra.cleanupUser" -}}
system:serviceaccount:{{ include "gpu-dra.namespace" . }}:{{ include "gpu-dra.cleanup" . }}
{{- end }}

{{- define "gpu-dra.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpu-dra.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Pods have these labels, too: no chart version, because it would restart every plugin at each release. */}}
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

{{/* Whether to create SecurityContextConstraints, as on OpenShift: "yes" or nothing. */}}
{{- define "gpu-dra.constraints" -}}
{{- $wanted := .Values.openshift.securityContextConstraints -}}
{{- if or (eq $wanted "always") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}yes{{- end -}}
{{- end }}

{{/*
The security context of containers that need nothing from the node. OpenShift assigns users per namespace and refuses pods
that set another one (constraint restricted-v2, which applies to these containers).
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

{{- define "gpu-dra.updateStrategy" -}}
{{- /* The default of `rollingUpdate` stays in the values if another type is set, and Kubernetes refuses it there. */ -}}
{{- toYaml (ternary . (omit . "rollingUpdate") (eq (default "RollingUpdate" .type) "RollingUpdate")) }}
{{- end }}

{{- define "gpu-dra.pluginSecurity" -}}
{{- $plugin := .Values.kubeletPlugin }}
{{- $real := not $plugin.simulate }}
# The kubelet's sockets and the device nodes belong to root.
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
{{- if and $real $plugin.privileged }}
# See kubeletPlugin.privileged in the values.
privileged: true
{{- else }}
allowPrivilegeEscalation: {{ $real }}
capabilities:
  drop: [ALL]
  {{- if $real }}
  add:
    {{- toYaml $plugin.capabilities | nindent 4 }}
  {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- if $real }}
# The default profile forbids every mount, regardless of capabilities.
appArmorProfile:
  type: Unconfined
{{- end }}
{{- end }}
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

{{/* The gates that are set, in the form of `--feature-gates`. */}}
{{- define "gpu-dra.featureGates" -}}
{{- $words := list -}}
{{- range $name, $on := .Values.featureGates -}}
{{- $words = append $words (printf "%s=%t" $name $on) -}}
{{- end -}}
{{- join "," $words -}}
{{- end }}

{{/* Whether a feature gate is on, "true" or "false". Argument: a list of the context and the gate's name. */}}
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

{{/* Whether to create ServiceMonitors: "yes" or nothing. */}}
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
Whether a pod with a nodeSelector and an affinity may run on a node, "yes" or nothing. Argument: a dictionary with `node`,
`selector`, `affinity`.
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
The nodes on which the plugin would run, as JSON: {"looked": bool, "nodes": [name…], "devicePlugin": [name…], "resources":
[name…]}. `devicePlugin` lists nodes on which a device plugin offers GPUs: whole ones (nvidia.com/gpu), shared ones
(nvidia.com/gpu.shared) or MIG devices (nvidia.com/mig-…); `resources` lists the names of these resources. The lists are empty
if Helm does not contact a cluster.
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
{{- /* A client-side dry run gets no list at all. */ -}}
{{- $looked := not (empty (lookup "v1" "Node" "" "")) -}}
{{- dict "looked" $looked "nodes" $names "devicePlugin" $taken "resources" (sortAlpha $resources) | toJson -}}
{{- end }}

{{/*
Other DRA drivers for the same devices, as JSON: {"gpus": [namespace/name…], "domains": [namespace/name…], "claims":
[namespace/name…]}. `gpus`: DaemonSets of NVIDIA's own driver that allocate GPUs under this driver's name or on the same
nodes, and of releases of this driver with another name on the same nodes. `domains`: DaemonSets that manage ComputeDomains,
if this release would manage them too. `claims`, at a first install only: claims whose GPUs NVIDIA's own driver allocated and
which pods may still use after that driver was removed; it names its devices by number (gpu-0), this driver by UUID. The lists
are empty if Helm does not contact a cluster. Source: the DaemonSet of NVIDIA's chart, in which each program has its own
container.
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
  {{- $self := and (eq .metadata.namespace (include "gpu-dra.namespace" $)) (eq (toString (dig "metadata" "annotations" "meta.helm.sh/release-name" "" .)) $.Release.Name) -}}
  {{- range $pod.containers | default list -}}
    {{- $words := join " " (concat (.command | default list) (.args | default list)) -}}
    {{- $nvidias := contains "gpu-kubelet-plugin" $words -}}
    {{- /* guard-upgrade.yaml handles plugins with the same driver name, and this release's own. */ -}}
    {{- $sibling := and (not $self) (has "gpu-dra-kubelet-plugin" (.command | default list)) (not (has (printf "--driver-name=%s" $driver) (.args | default list))) -}}
    {{- if and $nvidias (eq $driver "gpu.nvidia.com") -}}
      {{- $gpus = append $gpus $name -}}
    {{- else if or $nvidias $sibling -}}
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

{{/* The binding that makes an admission policy deny requests. Argument: a list of the context and the policy's name. */}}
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

{{/* The driver's accounts may not add finalizers: an object with one would block the deletion of its namespace and of the
release. */}}
{{- define "gpu-dra.noFinalizer" }}
  - expression: >-
      request.operation == 'DELETE' || !has(object.metadata.finalizers) || object.metadata.finalizers.all(one,
      request.operation == 'UPDATE' && has(oldObject.metadata.finalizers) && one in oldObject.metadata.finalizers)
    message: the driver's accounts may not add finalizers to this object
{{- end }}

{{/* An expression of an admission policy: the listed fields of an object's metadata are unchanged. */}}
{{- define "gpu-dra.unchanged" -}}
{{- $same := list -}}
{{- range . -}}
{{- $none := ternary "{}" "[]" (has . (list "labels" "annotations")) -}}
{{- $same = append $same (printf "(has(object.metadata.%s) ? object.metadata.%s : %s)\n      == (has(oldObject.metadata.%s) ? oldObject.metadata.%s : %s)" . . $none . . $none) -}}
{{- end -}}
{{- join "\n      && " $same -}}
{{- end }}

{{/* An expression: none of these fields is set. Argument: a list of their parent and their names. A field that the API
server does not know counts as not set. */}}
{{- define "gpu-dra.none" -}}
{{- $where := first . -}}
{{- $unset := list -}}
{{- range rest . -}}
{{- $unset = append $unset (printf "!has(%s.%s)" $where .) -}}
{{- end -}}
{{- join " && " $unset -}}
{{- end }}

{{/* Resources of a container as a CEL map from name to amount, both strings. */}}
{{- define "gpu-dra.amounts" -}}
{{- $amounts := list -}}
{{- range $name, $amount := . -}}
{{- $amounts = append $amounts (printf "'%s': '%s'" $name (toString $amount)) -}}
{{- end -}}
{{- printf "{%s}" (join ", " $amounts) -}}
{{- end }}

{{/* A regular expression for the selector that the controller writes into the DeviceClass of a MIG profile. */}}
{{- define "gpu-dra.profileSelector" -}}
{{- $driver := .Values.driverName | replace "." "[.]" -}}
{{- printf "^device[.]driver == '%s' && device[.]attributes\\['%s'\\][.]type == 'mig' && device[.]attributes\\['%s'\\][.]profile == '[a-z0-9.+-]+'$" $driver $driver $driver -}}
{{- end }}
