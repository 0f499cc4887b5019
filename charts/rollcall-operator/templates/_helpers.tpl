{{- define "rollcall.fullname" -}}
{{- if contains "rollcall-operator" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-rollcall-operator" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rollcall.selector" -}}
app.kubernetes.io/name: rollcall-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rollcall.labels" -}}
{{ include "rollcall.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "rollcall.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "rollcall.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "rollcall.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* Its own pods, as a list of NetworkPolicyPeers in JSON. */ -}}
{{- define "rollcall.operatorPeers" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $pods := dict "matchLabels" (include "rollcall.selector" . | fromYaml) -}}
{{- list (dict "namespaceSelector" $namespace "podSelector" $pods) | toJson -}}
{{- end -}}

{{- /* What the operator may do where it serves. Applying needs create and patch. */ -}}
{{- define "rollcall.rules" -}}
- apiGroups: [rollcall.dev]
  resources: [rljobs]
  verbs: [list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [rollcall.dev]
  resources: [rolloutpools]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [rollcall.dev]
  resources: [rljobs/status, rolloutpools/status]
  verbs: [patch]
- apiGroups: [rollcall.dev] # to set blockOwnerDeletion where the admission plugin asks for it
  resources: [rljobs/finalizers, rolloutpools/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [list, watch, create, patch]
- apiGroups: [apps] # of a reference that the trainer computes again
  resources: [deployments]
  verbs: [delete]
- apiGroups: [""]
  resources: [services] # delete: as above
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""] # the cluster's public keys, by which workers check tokens
  resources: [configmaps]
  verbs: [list, watch, create, patch]
- apiGroups: [""] # certificates of jobs' servers; none is read
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete] # patch: deletion costs; delete: replaced and moved rollouts
- apiGroups: [""]
  resources: [pods/status] # the readiness gate
  verbs: [patch]
- apiGroups: [networking.k8s.io] # delete: where spec.networkPolicy turns them off
  resources: [networkpolicies]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [list, create, patch] # list: why a StatefulSet creates no pods, and a volume is not mounted
{{- end -}}

{{- /* CEL: the field of an object, or something else where it is absent or null. */ -}}
{{- define "rollcall.celOr" -}}
{{- $object := index . 0 }}{{ $field := index . 1 }}{{ $else := index . 2 -}}
(has({{ $object }}.{{ $field }}) && {{ $object }}.{{ $field }} != null ? {{ $object }}.{{ $field }} : {{ $else }})
{{- end -}}

{{- /* CEL: the Secret with an RLJob's own certificate, which its pods mount; empty where there is none. */ -}}
{{- define "rollcall.certificateSecret" -}}
(dyn({{ . }}).kind == 'RLJob' && has(dyn({{ . }}).spec.tls) && has(dyn({{ . }}).spec.tls.secretName) ?
dyn({{ . }}).spec.tls.secretName : '')
{{- end -}}

{{- /* CEL: the Secrets that an RLJob's front mounts, empty texts for those that it does not name. */ -}}
{{- define "rollcall.frontSecrets" -}}
(dyn({{ . }}).kind == 'RLJob' && has(dyn({{ . }}).spec.front) ?
[has(dyn({{ . }}).spec.front.apiKeysSecret) ? dyn({{ . }}).spec.front.apiKeysSecret : dyn(''),
has(dyn({{ . }}).spec.front.tlsSecret) ? dyn({{ . }}).spec.front.tlsSecret : dyn('')] : [dyn('')])
{{- end -}}

{{- /* CEL: a list of the pod templates of an RLJob or RolloutPool, with their paths. It is dyn, since the
       schema of the resources does not know what is in a template. */ -}}
{{- define "rollcall.podTemplates" -}}
(dyn({{ . }}).kind == 'RolloutPool' ?
[{'at': dyn('spec.template'), 'template': dyn({{ . }}).spec.template}] :
[{'at': dyn('spec.trainer.template'), 'template': dyn({{ . }}).spec.trainer.template}] +
(has(dyn({{ . }}).spec.reference) && has(dyn({{ . }}).spec.reference.template) ?
[{'at': dyn('spec.reference.template'), 'template': dyn({{ . }}).spec.reference.template}] : []) +
(has(dyn({{ . }}).spec.front) ?
[{'at': dyn('spec.front.template'), 'template': dyn({{ . }}).spec.front.template}] : []) +
(has(dyn({{ . }}).spec.rollouts) ? dyn({{ . }}).spec.rollouts.map(r,
{'at': dyn('spec.rollouts[' + r.name + '].template'), 'template': r.template}) : []))
{{- end -}}
