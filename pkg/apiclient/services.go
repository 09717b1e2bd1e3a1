package apiclient

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// services caches the services that ReadServices reads.
type services struct {
	mu  sync.Mutex  // guards the fields below
	all *serviceSet // nil: not known
	// unavailable says that the server did not answer at least once.
	unavailable bool
}

// serviceSet holds the fields of services that pods' environments show, by namespace and name.
type serviceSet map[string]map[string]*v1.Service

// Services returns the services of a namespace that have an address, and the API
// server's own, sorted by name: names, addresses and ports, for the environments of pods
// (C-1.38.1). Until ReadServices has read them it is an error, or none with
// ReaderConfig.ServicesOptional once the server did not answer. If the server fails later,
// the last ones are returned.
func (r *Reader) Services(namespace string) ([]*v1.Service, error) {
	s := &r.services
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil && s.unavailable && r.cfg.ServicesOptional {
		return nil, nil
	}
	if s.all == nil {
		return nil, errors.New("the API server's services have not been read yet")
	}
	out := slices.Collect(maps.Values((*s.all)[namespace]))
	if server := (*s.all)[v1.NamespaceDefault]["kubernetes"]; server != nil && namespace != v1.NamespaceDefault {
		out = append(out, server)
	}
	slices.SortFunc(out, func(a, b *v1.Service) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// SetServicesUnavailable notes that the server did not answer a request for Services.
func (r *Reader) SetServicesUnavailable() {
	r.services.mu.Lock()
	defer r.services.mu.Unlock()
	r.services.unavailable = true
}

// ReadServices keeps the services of the server up to date until ctx ends. It calls
// answered once, after the first list or failure. The next call may begin before this
// one ends: each removes only the set that it stored.
func (r *Reader) ReadServices(ctx context.Context, answered func(error)) {
	s, mine := &r.services, &serviceSet{}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.all == mine {
			s.all = nil
		}
	}()
	first := true
	once := func(err error) {
		if first {
			first = false
			answered(err)
		}
	}
	r.Reflect(ctx, allServices(), Listener{
		List: func(all []Object) Next {
			fresh := serviceSet{}
			for _, o := range all {
				fresh.put(o)
			}
			s.mu.Lock()
			if *mine = fresh; ctx.Err() == nil { // otherwise the next call stores its own
				s.all = mine
			}
			s.mu.Unlock()
			once(nil)
			return Continue
		},
		Event: func(e Event) Next {
			s.mu.Lock()
			defer s.mu.Unlock()
			if delete((*mine)[e.Object.GetNamespace()], e.Object.GetName()); e.Type != watch.Deleted {
				mine.put(e.Object)
			}
			return Continue
		},
		Failed: func(err error) {
			r.cfg.Log.Debug("Failed to read services", "error", err)
			once(err)
		},
	})
}

// put stores a service, unless it has no address.
func (all serviceSet) put(o Object) {
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
