package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

func service(namespace, name, ip string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"large": "x"}},
		Spec:       v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Port: 80}}},
	}
}

func serviceNames(t *testing.T, src *Source, namespace string) string {
	t.Helper()
	all, err := src.reader.Services(namespace)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, s := range all {
		out = append(out, fmt.Sprintf("%s/%s=%s:%d", s.Namespace, s.Name, s.Spec.ClusterIP, s.Spec.Ports[0].Port))
		if len(s.Annotations) > 0 {
			t.Error("annotations of services are kept")
		}
	}
	return strings.Join(out, " ")
}

// Services are known with the first pods, change, and are read only while there
// are pods.
//
// Shows: C-1.38.1
func TestC_1_38_1_Services(t *testing.T) {
	const unknown = "the API server's services have not been read yet"
	for _, json := range []bool{false, true} {
		s := newServer(t)
		s.json = json
		s.keep("services", service("default", "kubernetes", "10.0.0.1"), service("ns", "b", "10.0.0.3"), service("ns", "a", "10.0.0.2"),
			service("ns", "headless", "None"), service("ns", "none", ""), service("default", "web", "10.0.0.4"))
		src := s.source(t, func(c *Config) { c.Services = true })
		l := sourcetest.Listen(t, src)
		l.Set().Holds(t)
		if got := serviceNames(t, src, "ns"); got != unknown || s.asksFor("services") != 0 {
			t.Errorf("without a pod: %q", got)
		}
		s.put(boundPod("one", "x"))
		l.Set().Holds(t, "one")
		if got, want := serviceNames(t, src, "ns"), "ns/a=10.0.0.2:80 ns/b=10.0.0.3:80 default/kubernetes=10.0.0.1:80"; got != want {
			t.Errorf("services %q, want %q", got, want)
		}
		if got, want := serviceNames(t, src, "default"), "default/kubernetes=10.0.0.1:80 default/web=10.0.0.4:80"; got != want {
			t.Errorf("services %q, want %q", got, want)
		}
		s.until(t, "a watch", func() bool { return s.live["services"] == 1 })
		s.change(func() {
			s.keeps("services", service("ns", "a", "None"))
			s.keeps("services", service("ns", "c", "10.0.0.5"))
			s.loses("services", "web")
		})
		eventually(t, func() string { return serviceNames(t, src, "ns") + ", " + serviceNames(t, src, "default") },
			"ns/b=10.0.0.3:80 ns/c=10.0.0.5:80 default/kubernetes=10.0.0.1:80, default/kubernetes=10.0.0.1:80")
		s.fails(http.StatusServiceUnavailable)
		_ = l.Error()
		if got := serviceNames(t, src, "ns"); !strings.HasPrefix(got, "ns/b=") {
			t.Errorf("in an outage: %q", got)
		}
		s.change(func() { s.answer = nil; s.drops(key("one")) })
		for w := l.Set(); len(w.Contents()) > 0; w = l.Set() {
		}
		s.until(t, "no watch", func() bool { return s.live["services"] == 0 })
		eventually(t, func() string { return serviceNames(t, src, "ns") }, unknown)
	}
}

// The last pod is removed, and another is added before the reader of services has
// ended: its late end removes nothing that the next one read, which still receives
// changes.
//
// Shows: C-1.38.1
func TestC_1_38_1_LateEndOfAReaderErasesNothing(t *testing.T) {
	s := newServer(t)
	s.keep("services", service("ns", "a", "10.0.0.2"))
	src := s.source(t)
	defer src.reader.Release()
	told, starved := make(chan struct{}), make(chan struct{}) // cap 0: readers send the one; the other is closed
	answered := func() {
		t.Helper()
		select {
		case <-told:
		case <-time.After(wait.Limit):
			t.Fatal("a reader of services reports nothing")
		}
	}
	tells := func(ctx context.Context) {
		select {
		case told <- struct{}{}:
		case <-ctx.Done():
		}
	}
	first, drop := context.WithCancel(t.Context())
	var old sync.WaitGroup
	old.Go(func() {
		src.reader.ReadServices(first, func(error) {
			tells(first)
			select {
			case <-starved:
			case <-t.Context().Done():
			}
		})
	})
	answered()
	drop()
	second, stop := context.WithCancel(t.Context())
	var next sync.WaitGroup
	defer next.Wait()
	defer stop()
	next.Go(func() {
		src.reader.ReadServices(second, func(error) { tells(second) })
	})
	answered()
	close(starved)
	old.Wait()
	if got, want := serviceNames(t, src, "ns"), "ns/a=10.0.0.2:80"; got != want {
		t.Fatalf("services %q, want %q", got, want)
	}
	s.until(t, "a watch", func() bool { return s.live["services"] == 1 })
	s.keep("services", service("ns", "b", "10.0.0.3"))
	eventually(t, func() string { return serviceNames(t, src, "ns") }, "ns/a=10.0.0.2:80 ns/b=10.0.0.3:80")
}

// A server that refuses services does not delay pods.
//
// Shows: C-1.38.1
func TestC_1_38_1_RefusedServices(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if plural(r) == "services" {
			w.WriteHeader(http.StatusForbidden)
		}
		return plural(r) == "services"
	})
	src := s.source(t, func(c *Config) { c.Services = true })
	l := sourcetest.Listen(t, src)
	l.Set().Holds(t, "one")
	if _, err := src.reader.Services("default"); err == nil {
		t.Error("services are known")
	}
}

// eventually waits until look says want.
func eventually(t *testing.T, look func() string, want string) {
	t.Helper()
	wait.Equal(t, "what is seen", want, look)
}

// While the server has not answered, pods that may start without it start without the
// addresses; later answers take effect.
//
// Shows: C-1.38.1
func TestC_1_38_1_ServicesOfAnUnresponsiveServer(t *testing.T) {
	for _, offline := range []bool{false, true} {
		s := newServer(t)
		s.keep("services", service("ns", "a", "10.0.0.2"))
		s.fails(http.StatusServiceUnavailable)
		path := leadsTo(t, s.URL, "", "")
		reader := newReader(t, path, func(r *apiclient.ReaderConfig) { r.ServicesOptional = offline })
		src := newSource(t, path, func(c *Config) { c.Reader, c.Services = reader, true })
		l := sourcetest.Listen(t, src)
		if l.Error() == nil {
			t.Error("no error")
		}
		if all, err := src.reader.Services("ns"); (err == nil) != offline || len(all) != 0 {
			t.Errorf("offline %t: %v, %v", offline, all, err)
		}
	}
}
