package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// webService is the manifest of a Service of the Deployment web.
const webService = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`

// serviceRange is a range that no route of the test's network namespace has.
const serviceRange = "10.97.0.0/16"

// balancedReplicas is twoReplicas with a named port and a file by which the test makes a pod not
// ready, and with the variables of the Service in the log.
func balancedReplicas(s *stage) string {
	return `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, version: one}}
    spec:
      terminationGracePeriodSeconds: 2
      ` + s.scratchVolume() + `
      containers:
      ` + container("main", `env, WEB_SERVICE_HOST, unready, /x/$(NAME), serve, ":8080", forever`, scratchMount,
		"env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]", "ports: [{name: http, containerPort: 8080}]",
		"readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10}") + "\n"
}

// allocated returns the cluster IP and the node port of the only Service.
func (s *stage) allocated() (ip, port string) {
	s.Helper()
	s.eventually(func() error {
		var stored struct {
			Services []struct {
				ClusterIPs []string       `json:"clusterIPs"`
				NodePorts  map[string]int `json:"nodePorts"`
			} `json:"services"`
		}
		text, err := os.ReadFile(filepath.Join(s.root, "services.json"))
		if err == nil {
			err = json.Unmarshal(text, &stored)
		}
		if err != nil {
			return err
		}
		if len(stored.Services) != 1 || len(stored.Services[0].ClusterIPs) != 1 || stored.Services[0].NodePorts["TCP/80"] == 0 {
			return fmt.Errorf("no addresses: %s", text)
		}
		ip, port = stored.Services[0].ClusterIPs[0], fmt.Sprint(stored.Services[0].NodePorts["TCP/80"])
		return nil
	})
	return ip, port
}

// askFrom returns the page of an address as a process in the network namespace of pid gets it; 0 is
// the node.
func askFrom(pid int, address string) (line string, err error) {
	if pid == 0 {
		return ask(address)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // the thread may have started an agent, and must not end (see command)
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return "", err
	}
	defer own.Close()
	other, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return "", err
	}
	defer other.Close()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return "", err
	}
	defer func() {
		if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
			panic(back) // other tests would run on this thread
		}
	}()
	return ask(address)
}

func ask(address string) (string, error) {
	c, err := net.DialTimeout("tcp4", address, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	if err != nil {
		return "", err
	}
	_, body, _ := strings.Cut(string(text), "\r\n\r\n")
	return strings.TrimSpace(body), nil
}

// answers waits until exactly these pods answer a number of connections in a row.
func (s *stage) answers(pid int, address string, want ...string) {
	s.Helper()
	slices.Sort(want)
	s.eventually(func() error {
		var got []string
		for range 30 {
			name, err := askFrom(pid, address)
			if err != nil {
				return err
			}
			got = append(got, name)
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			return fmt.Errorf("%s: %v answer, want %v", address, got, want)
		}
		return nil
	})
}

// TestServices_DeploymentBehindAService_IsReachedAndGoes: by its cluster IP and its node port, from
// the node, from 127.0.0.1 and from another pod, also while no agent runs. A pod that is not ready
// gets no connections. Without its manifest, nothing is left of the Service.
func TestServices_DeploymentBehindAService_IsReachedAndGoes(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", webService+"---\n"+balancedReplicas(s))
	s.write("client.yaml", simple("client"))
	a := s.serve("--service-cidr", serviceRange, "--dns=false")
	pods := s.awaitVersion("one", false)
	client := s.awaitRunning("client", "main")["main"].pid
	ip, port := s.allocated()
	node := s.sandbox("client").Network.GetIp()
	node = node[:strings.LastIndex(node, ".")] + ".1" // the bridge
	everywhere := func(want ...string) {
		t.Helper()
		for _, at := range []struct {
			pid     int
			address string
		}{{0, ip + ":80"}, {0, "127.0.0.1:" + port}, {client, ip + ":80"}, {client, node + ":" + port}} {
			s.answers(at.pid, at.address, want...)
		}
	}
	everywhere(pods...)
	if r := s.run("get", "services"); r.code != 0 || !holds(r.out, []string{"web", "NodePort", ip, "80:" + port + "/TCP"}) {
		t.Errorf("get services: %+v", r)
	}
	if r := s.run("describe", "service", "web"); r.code != 0 || !holds(r.out, []string{"Selector:", "app=web", "Endpoints:", ":8080"}) {
		t.Errorf("describe service: %+v", r)
	}
	for _, p := range pods {
		found, _ := filepath.Glob(filepath.Join(s.logs, "default_"+p+"_*/main/0.log"))
		for _, file := range found {
			if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), ip) {
				t.Errorf("the log of %s has no address of the Service: %q, %v", p, text, err)
			}
		}
		if len(found) != 1 {
			t.Errorf("logs of %s: %v", p, found)
		}
	}

	s.touch(pods[0])
	everywhere(pods[1])
	a.leave()
	everywhere(pods[1])
	a = s.serve("--service-cidr", serviceRange, "--dns=false")
	s.must(os.Remove(filepath.Join(s.scratch, pods[0])))
	everywhere(pods...)
	if again, portAgain := s.allocated(); again != ip || portAgain != port {
		t.Errorf("after a restart of the agent: %s %s, before %s %s", again, portAgain, ip, port)
	}

	s.write("web.yaml", balancedReplicas(s))
	for _, at := range []string{ip + ":80", "127.0.0.1:" + port} {
		s.eventually(func() error {
			if name, err := askFrom(client, at); err == nil {
				return errors.New(at + ": " + name + " answers")
			}
			return nil
		})
	}
	s.remove("web.yaml")
	s.remove("client.yaml")
	s.eventually(func() error {
		if left := s.ofWorkload("web"); len(left) > 0 {
			return fmt.Errorf("%d pods are left", len(left))
		}
		return nil
	})
	s.awaitGone("client")
	a.leave()
}
