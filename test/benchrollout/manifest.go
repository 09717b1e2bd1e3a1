package main

import (
	"fmt"
	"time"
)

// serviceRange is a range of cluster IPs that no network of a machine has, by RFC 2544; address is
// the Service's. The tenth address of a range is that of the DNS server.
const (
	serviceRange = "198.18.40.0/24"
	address      = "198.18.40.20"
)

// replicas is how many pods the Deployment has.
const replicas = 3

// version is one version of the Deployment's pods.
type version struct {
	name  string // the label version
	kind  string // good, or how it fails
	image string
	args  string
	path  string // of the readiness probe
	pull  string // the pull policy
}

// good returns a version that works: a server that ends gracefully.
func good(n int) version {
	return version{name: fmt.Sprintf("v%d", n), kind: "good", image: "nodectl.dev/examples/web:1", path: "/ready", pull: "Never"}
}

// badKinds are the ways in which a version fails.
var badKinds = []string{"crash", "never ready", "dies after 3 s", "image missing"}

// bad returns a version that fails.
func bad(n int) version {
	v := good(n)
	v.name, v.kind = fmt.Sprintf("bad%d", n), badKinds[n%len(badKinds)]
	switch v.kind {
	case "crash":
		v.image, v.args = stampImage, `args: [exit, "3"]`
	case "never ready":
		v.path = "/missing"
	case "dies after 3 s":
		v.image, v.args = stampImage, `args: [serve, ":8080", sleep, 3s, exit, "1"]`
	case "image missing":
		v.image = "nodectl.dev/examples/missing:1"
	}
	return v
}

const stampImage = "nodectl.dev/test/stamp:1"

// trial is how long nodectl may still roll a version back after it was complete.
const trial = 10 * time.Second

// where is how clients reach the pods.
type where struct {
	clusterIP string
	hostPort  int // 0 is none; a port has one pod
}

// manifest is the Service and the Deployment in a version.
func manifest(v version, s settings, at where) string {
	port, pods := "{name: http, containerPort: 8080}", replicas
	if at.hostPort != 0 {
		port, pods = fmt.Sprintf("{name: http, containerPort: 8080, hostPort: %d}", at.hostPort), 1
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: %s
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  annotations: {nodectl.dev/rollback: on-failure, nodectl.dev/rollback-trial: %s}
spec:
  replicas: %d
  progressDeadlineSeconds: %d
  minReadySeconds: %d
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, version: %s}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: main
        image: %s
        imagePullPolicy: %s
        env: [{name: TITLE, value: %s}]
        ports: [%s]
        readinessProbe: {httpGet: {path: %s, port: http}, periodSeconds: 1, timeoutSeconds: 5}
`, at.clusterIP, trial, pods, int(s.deadline.Seconds()), int(s.minReady.Seconds()), v.name, v.image, v.pull, v.name, port, v.path)
	if v.args != "" {
		text += "        " + v.args + "\n"
	}
	return text
}
