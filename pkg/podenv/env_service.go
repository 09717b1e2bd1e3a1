package podenv

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// serviceVariables returns the environment variables of services (C-1.38.1): those of
// the pod's namespace, unless enableServiceLinks is false, and the API server's.
// Headless services have none.
func serviceVariables(p *v1.Pod, services []*v1.Service) map[string]string {
	links := p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks
	chosen := map[string]*v1.Service{}
	for _, s := range services {
		server := s.Namespace == v1.NamespaceDefault && s.Name == "kubernetes"
		switch {
		case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone || len(s.Spec.Ports) == 0:
		case s.Namespace == p.Namespace && links: // before the API server's of the same name
			chosen[s.Name] = s
		case server && chosen[s.Name] == nil:
			chosen[s.Name] = s
		}
	}
	vars := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		addService(vars, chosen[name])
	}
	return vars
}

// addService adds the variables of one service: NAME_SERVICE_HOST and _PORT, and
// those that container links once had.
func addService(vars map[string]string, s *v1.Service) {
	name, host := variableName(s.Name), s.Spec.ClusterIP
	vars[name+"_SERVICE_HOST"] = host
	for i, p := range s.Spec.Ports {
		port, protocol := strconv.Itoa(int(p.Port)), string(p.Protocol)
		if protocol == "" {
			protocol = string(v1.ProtocolTCP)
		}
		small := strings.ToLower(protocol)
		at := host + ":" + port
		if strings.Contains(host, ":") {
			at = "[" + host + "]:" + port
		}
		url := small + "://" + at
		if i == 0 {
			vars[name+"_SERVICE_PORT"] = port
			vars[name+"_PORT"] = url
		}
		if p.Name != "" {
			vars[name+"_SERVICE_PORT_"+variableName(p.Name)] = port
		}
		link := fmt.Sprintf("%s_PORT_%s_%s", name, port, strings.ToUpper(protocol))
		vars[link] = url
		vars[link+"_PROTO"] = small
		vars[link+"_PORT"] = port
		vars[link+"_ADDR"] = host
	}
}

func variableName(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
