package kube

import "strings"

// kubectlImage has only kubectl.
const kubectlImage = "nodectl.dev/test/kubectl:1"

// dnsAddress is the cluster's DNS service.
const dnsAddress = "10.96.0.10"

// dnsManifests run CoreDNS as a cluster does: a Deployment in kube-system that reads services
// and pods with its own service account.
var dnsManifests = strings.NewReplacer("IMAGE", coreDNS, "ADDRESS", dnsAddress).Replace(`apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        health
        ready
        kubernetes cluster.local in-addr.arpa {
            pods verified
            ttl 1
        }
    }
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: ADDRESS
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      priorityClassName: system-cluster-critical
      dnsPolicy: Default
      terminationGracePeriodSeconds: 1
      containers:
      - name: coredns
        image: IMAGE
        args: [-conf, /etc/coredns/Corefile]
        command: [/bin/coredns]
        resources: {limits: {memory: 170Mi}, requests: {cpu: 100m, memory: 70Mi}}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
          readOnlyRootFilesystem: true
        livenessProbe: {httpGet: {path: /health, port: 8080}, initialDelaySeconds: 60, timeoutSeconds: 60}
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1, timeoutSeconds: 60}
        volumeMounts: [{name: config, mountPath: /etc/coredns, readOnly: true}]
      volumes: [{name: config, configMap: {name: coredns, items: [{key: Corefile, path: Corefile}]}}]
`)

// clientManifests are a pod with kubectl that connects to the API server as any client in a
// pod does: by its name, the account's token and the account's CA.
const clientManifests = `apiVersion: v1
kind: ConfigMap
metadata: {name: client}
data:
  config: |
    apiVersion: v1
    kind: Config
    clusters: [{name: in, cluster: {server: "https://kubernetes.default.svc", certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}}]
    users: [{name: in, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]
    contexts: [{name: in, context: {cluster: in, user: in}}]
    current-context: in
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: ` + kubectlImage + `
    command: [/bin/kubectl, proxy]
    env: [{name: KUBECONFIG, value: /config/config}, {name: HOME, value: /tmp}, {name: KUBECTL_KUBERC, value: "false"}]
    volumeMounts: [{name: config, mountPath: /config}]
  volumes: [{name: config, configMap: {name: client}}]
`

// metricsManifests run metrics-server, which reads the node's /metrics/resource with its own
// service account and serves kubectl top.
var metricsManifests = strings.ReplaceAll(`apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:metrics-server"}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:metrics-server"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:metrics-server"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "metrics-server:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {selector: {k8s-app: metrics-server}, ports: [{name: https, port: 443, targetPort: https}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: metrics-server}}
  template:
    metadata: {labels: {k8s-app: metrics-server}}
    spec:
      serviceAccountName: metrics-server
      priorityClassName: system-cluster-critical
      terminationGracePeriodSeconds: 1
      containers:
      - name: metrics-server
        image: IMAGE
        command: [/bin/metrics-server]
        args: [--cert-dir=/tmp, --secure-port=10250, --kubelet-preferred-address-types=InternalIP, --kubelet-use-node-status-port, --kubelet-insecure-tls, --metric-resolution=10s, --kubelet-request-timeout=9s]
        ports: [{name: https, containerPort: 10250}]
        readinessProbe: {httpGet: {path: /readyz, port: https, scheme: HTTPS}, periodSeconds: 1, timeoutSeconds: 60}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, runAsUser: 1000, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
        volumeMounts: [{name: tmp, mountPath: /tmp}]
      volumes: [{name: tmp, emptyDir: {}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system}
`, "IMAGE", metricsServer)
