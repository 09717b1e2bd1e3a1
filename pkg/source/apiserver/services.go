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
	out := slices.Collect(maps.Values(s.services[namespace]))
	if server := s.services[v1.NamespaceDefault]["kubernetes"]; server != nil && namespace != v1.NamespaceDefault {
		out = append(out, server)
	}
	slices.SortFunc(out, func(a, b *v1.Service) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// readServices keeps s.services what the server says until ctx ends; tell hears of
// the first answer.
func (s *Source) readServices(ctx context.Context, tell func(*pod.Object, error)) {
	defer func() {
		s.mu.Lock()
		s.services = nil
		s.mu.Unlock()
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
			fresh := make(map[string]map[string]*v1.Service)
			for _, o := range all {
				putService(fresh, o)
			}
			s.mu.Lock()
			s.services = fresh
			s.mu.Unlock()
			answered(nil)
			return goOn
		},
		event: func(e event) verdict {
			s.mu.Lock()
			defer s.mu.Unlock()
			if delete(s.services[e.object.GetNamespace()], e.object.GetName()); e.kind != watch.Deleted {
				putService(s.services, e.object)
			}
			return goOn
		},
		failed: func(err error) {
			s.cfg.Log.Debug("Services not read", "error", err)
			answered(err)
		},
	})
}

// putService keeps what pods are told of a service; of one without an address that
// is nothing.
func putService(all map[string]map[string]*v1.Service, o object) {
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
