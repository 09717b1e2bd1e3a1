package apiserver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Services returns the services of a namespace that have an address, and the API
// server's own, as pods are told of them (C-1.38.1): their names, addresses and
// ports, sorted by name. They are read while there are pods and Config.Services
// asks for it; it is an error while they have not been read, or none with
// Config.Offline, once the server did not answer. A server that is silent later
// keeps the last ones.
func (s *Source) Services(namespace string) ([]*v1.Service, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.services == nil && s.silent && s.cfg.Offline {
		return nil, nil
	}
	if s.services == nil {
		return nil, errors.New("the API server's services have not been read yet")
	}
	out := slices.Collect(maps.Values((*s.services)[namespace]))
	if server := (*s.services)[v1.NamespaceDefault]["kubernetes"]; server != nil && namespace != v1.NamespaceDefault {
		out = append(out, server)
	}
	slices.SortFunc(out, func(a, b *v1.Service) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// services are what pods are told of them, by namespace and name.
type services map[string]map[string]*v1.Service

// readServices keeps s.services what the server says until ctx ends; tell hears of
// the first answer. Nobody waits for its end before the next one begins: it takes
// back only what it wrote itself.
func (s *Source) readServices(ctx context.Context, tell func(*pod.Object, error)) {
	mine := &services{}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.services == mine {
			s.services = nil
		}
	}()
	first := true
	answered := func(err error) {
		if first {
			first = false
			tell(nil, err)
		}
	}
	everywhere := collection{serviceKind(), []string{"api", "v1", "services"}, "", "list and watch services"}
	s.keep(ctx, everywhere, listener{
		list: func(all []object) verdict {
			fresh := services{}
			for _, o := range all {
				fresh.put(o)
			}
			s.mu.Lock()
			if *mine = fresh; ctx.Err() == nil { // or it is the next one's turn
				s.services = mine
			}
			s.mu.Unlock()
			answered(nil)
			return goOn
		},
		event: func(e event) verdict {
			s.mu.Lock()
			defer s.mu.Unlock()
			if delete((*mine)[e.object.GetNamespace()], e.object.GetName()); e.kind != watch.Deleted {
				mine.put(e.object)
			}
			return goOn
		},
		failed: func(err error) {
			s.cfg.Log.Debug("Services not read", "error", err)
			answered(err)
		},
	})
}

// put keeps what pods are told of a service; of one without an address that is
// nothing.
func (all services) put(o object) {
	is, ok := o.(*v1.Service)
	if !ok || is.Spec.ClusterIP == "" || is.Spec.ClusterIP == v1.ClusterIPNone {
		return
	}
	if all[is.Namespace] == nil {
		all[is.Namespace] = map[string]*v1.Service{}
	}
	all[is.Namespace][is.Name] = &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: is.Name, Namespace: is.Namespace},
		Spec:       v1.ServiceSpec{ClusterIP: is.Spec.ClusterIP, Ports: is.Spec.Ports},
	}
}
