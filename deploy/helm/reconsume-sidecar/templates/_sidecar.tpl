{{- /*
What `reconsume inject --config-map NAME` puts into a pod; a test compares them. In the template of a pod:

    metadata:
      labels: {{- include "reconsume.labels" . | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: 40
      initContainers: {{- include "reconsume.container" (dict "grace" 40) | nindent 8 }}
      volumes: {{- include "reconsume.volumes" (dict "configMap" "orders-reconsume") | nindent 8 }}

It is the first of the init containers. Keys: image, memoryLimit, grace (the pod's grace period in seconds), configMap.
*/ -}}
{{- define "reconsume.labels" -}}
reconsume.io/inject: "true"
{{- end -}}
{{- define "reconsume.container" -}}
- name: reconsume
  image: {{ .image | default "reconsume:0.3.0" }}
  args:
  - run
  - -c
  - /etc/reconsume/reconsume.yaml
  env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: RECONSUME_DRAIN_TIMEOUT
    value: {{ sub (.grace | default 40) 5 }}s
  ports:
  - name: reconsume
    containerPort: 8472
  startupProbe:
    httpGet:
      path: /livez
      port: reconsume
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet:
      path: /livez
      port: reconsume
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet:
      path: /readyz
      port: reconsume
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  lifecycle:
    preStop:
      exec:
        command:
        - reconsume
        - drain
        - -c
        - /etc/reconsume/reconsume.yaml
  resources:
    requests:
      cpu: 50m
      memory: 96Mi
    limits:
      memory: {{ .memoryLimit | default "256Mi" }}
  securityContext:
    runAsNonRoot: true
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    seccompProfile:
      type: RuntimeDefault
  terminationMessagePolicy: FallbackToLogsOnError
  restartPolicy: Always
  volumeMounts:
  - name: reconsume-config
    mountPath: /etc/reconsume
    readOnly: true
  - name: reconsume-no-token
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
{{- end -}}
{{- define "reconsume.volumes" -}}
- name: reconsume-config
  configMap:
    name: {{ required "configMap: the ConfigMap with reconsume.yaml" .configMap }}
- name: reconsume-no-token
  emptyDir: {}
{{- end -}}
