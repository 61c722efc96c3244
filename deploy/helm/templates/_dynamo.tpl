{{- define "sterna.dynamo" -}}
- { name: DYN_DISCOVERY_BACKEND, value: etcd }
- { name: ETCD_ENDPOINTS, value: {{ .Values.etcd | quote }} }
- { name: DYN_REQUEST_PLANE, value: tcp }
- { name: DYN_EVENT_PLANE, value: nats }
- { name: NATS_SERVER, value: {{ .Values.nats | quote }} }
- { name: DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS, value: "30" }
- { name: HF_HUB_OFFLINE, value: "1" }
{{- end -}}
