package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// features are the features that a runtime reports.
type features struct {
	handlers     map[string]*runtimeapi.RuntimeHandlerFeatures // by name; "" is the default
	strictGroups bool
}

func featuresOf(a *runtimeapi.StatusResponse) *features {
	f := &features{
		handlers:     make(map[string]*runtimeapi.RuntimeHandlerFeatures, len(a.GetRuntimeHandlers())),
		strictGroups: a.GetFeatures().GetSupplementalGroupsPolicy(),
	}
	for _, h := range a.GetRuntimeHandlers() {
		f.handlers[h.GetName()] = h.GetFeatures()
	}
	return f
}

// RecursiveReadOnly reports whether the handler makes mounts recursively read-only
// (C-1.37.8), by the runtime's last answer to Ready or RunSandbox.
func (r *Runtime) RecursiveReadOnly(handler string) bool {
	f := r.features.Load()
	return f != nil && f.handlers[handler].GetRecursiveReadOnlyMounts()
}

// UserNamespaces reports whether the handler supports user namespaces (C-1.42.3), by the
// runtime's last answer to Ready or RunSandbox.
func (r *Runtime) UserNamespaces(handler string) bool {
	f := r.features.Load()
	return f != nil && f.handlers[handler].GetUserNamespaces()
}

// Handler returns the runtime's handler for a pod of that class: from the configuration,
// else from an API server. If neither has it, it is the class itself, and known is false.
// Without a class it is the configuration's handler, "" for the runtime's default. An error
// says that the API server did not answer: the handler is not guessed.
func (r *Runtime) Handler(ctx context.Context, class *string) (handler string, known bool, err error) {
	if class == nil || *class == "" {
		return r.cfg.RuntimeHandler, true, nil
	}
	if handler, known = r.cfg.RuntimeClasses[*class]; !known && r.cfg.RuntimeClass != nil {
		handler, known, err = r.cfg.RuntimeClass(ctx, *class)
	}
	switch {
	case err != nil:
		return "", false, err
	case !known:
		return *class, false, nil
	}
	return handler, true, nil
}

// staticPatience is how long a pod from a static source waits for an API server.
const staticPatience = time.Second

// handlerFor is Handler for that pod. The class of a pod from an API server must exist, as
// in the kubelet. Any other pod may name a handler, and does not depend on a server.
func (r *Runtime) handlerFor(ctx context.Context, want *pod.Spec) (string, error) {
	class := want.Pod.Spec.RuntimeClassName
	if !want.Origin.FromAPI() {
		asked, stop := context.WithTimeout(ctx, staticPatience)
		defer stop()
		handler, _, err := r.Handler(asked, class)
		if err != nil {
			handler = *class
		}
		return handler, nil
	}
	handler, known, err := r.Handler(ctx, class)
	switch {
	case err != nil:
		return "", fmt.Errorf("runtimeClassName %s: %w", *class, err)
	case !known:
		return "", fmt.Errorf("runtimeClassName %s: the API server has no such RuntimeClass", *class)
	}
	return handler, nil
}

// suits returns why this runtime cannot run the pod with that handler. It asks the runtime
// now, but only for pods that need a class, strict groups or a user namespace.
func (r *Runtime) suits(ctx context.Context, p *v1.Pod, handler string) error {
	class := p.Spec.RuntimeClassName
	named := class != nil && *class != ""
	sc := p.Spec.SecurityContext
	strict := sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict
	if !named && !strict && !ownUsers(p) {
		return nil
	}
	const reason = "FailedCreatePodSandBox"
	a, err := read(ctx, r, "Status", r.rt.Status, &runtimeapi.StatusRequest{})
	if err != nil {
		return cannot(reason, err)
	}
	f := featuresOf(a)
	r.features.Store(f)
	if err := f.suit(class, named, strict, ownUsers(p), handler); err != nil {
		return &pod.StartError{Reason: reason, Err: err, Final: true}
	}
	return nil
}

func (f *features) suit(class *string, named, strict, users bool, handler string) error {
	switch of, there := f.handlers[handler]; {
	case named && !there && len(f.handlers) > 0: // without a list the runtime decides
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(f.handlers)), func(n string) bool { return n == "" })
		return fmt.Errorf("runtimeClassName %s: the runtime has no handler %q; it has: %s", *class, handler, strings.Join(names, ", "))
	case users && !of.GetUserNamespaces() && named:
		return fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
	case users && !of.GetUserNamespaces():
		return errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	case strict && !f.strictGroups:
		return errors.New("supplementalGroupsPolicy Strict is not supported by the runtime")
	}
	return nil
}
