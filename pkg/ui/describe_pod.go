package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// DescribePod returns a pod as kubectl describe does.
func DescribePod(p *v1.Pod, h ObjectEvents, now time.Time) string {
	s := newSheet()
	s.row(0, "Name:", p.Name)
	s.row(0, "Namespace:", p.Namespace)
	if p.Spec.Priority != nil {
		s.row(0, "Priority:", fmt.Sprint(*p.Spec.Priority))
		s.nonEmpty(0, "Priority Class Name:", p.Spec.PriorityClassName)
	}
	if p.Spec.RuntimeClassName != nil {
		s.row(0, "Runtime Class Name:", *p.Spec.RuntimeClassName)
	}
	s.nonEmpty(0, "Service Account:", p.Spec.ServiceAccountName)
	if p.Spec.NodeName == "" {
		s.row(0, "Node:", "<none>")
	} else {
		s.row(0, "Node:", p.Spec.NodeName+"/"+p.Status.HostIP)
	}
	if p.Status.StartTime != nil {
		s.row(0, "Start Time:", longTime(*p.Status.StartTime))
	}
	s.list(0, "Labels:", fields(p.Labels, "="))
	s.list(0, "Annotations:", annotations(p.Annotations))
	if p.DeletionTimestamp != nil && !pod.IsPhaseTerminal(p.Status.Phase) {
		s.row(0, "Status:", "Terminating (lasts "+howLong(*p.DeletionTimestamp, now)+")")
		if p.DeletionGracePeriodSeconds != nil {
			s.row(0, "Termination Grace Period:", fmt.Sprintf("%ds", *p.DeletionGracePeriodSeconds))
		}
	} else {
		s.row(0, "Status:", string(p.Status.Phase))
	}
	s.nonEmpty(0, "Reason:", p.Status.Reason)
	s.nonEmpty(0, "Message:", p.Status.Message)
	if c := p.Spec.SecurityContext; c != nil && c.SeccompProfile != nil {
		s.seccomp(0, c.SeccompProfile)
	}
	s.addresses(&p.Status)
	if o := metav1.GetControllerOf(p); o != nil {
		s.row(0, "Controlled By:", o.Kind+"/"+o.Name)
	}
	s.nonEmpty(0, "NominatedNodeName:", p.Status.NominatedNodeName)
	s.containers("Init Containers:", p.Spec.InitContainers, p.Status.InitContainerStatuses)
	s.containers("Containers:", p.Spec.Containers, p.Status.ContainerStatuses)
	var ephemeral []v1.Container
	for _, c := range p.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, v1.Container(c.EphemeralContainerCommon))
	}
	s.containers("Ephemeral Containers:", ephemeral, p.Status.EphemeralContainerStatuses)
	s.gates(p)
	if len(p.Status.Conditions) > 0 {
		s.row(0, "Conditions:")
		s.row(1, "Type", "Status")
		for _, c := range p.Status.Conditions {
			s.row(1, string(c.Type), string(c.Status))
		}
	}
	s.volumes(p.Spec.Volumes)
	s.nonEmpty(0, "QoS Class:", string(p.Status.QOSClass))
	s.list(0, "Node-Selectors:", fields(p.Spec.NodeSelector, "="))
	var tolerations []string
	for _, t := range p.Spec.Tolerations {
		tolerations = append(tolerations, toleration(t))
	}
	slices.Sort(tolerations)
	s.list(0, "Tolerations:", tolerations)
	s.events(h, now)
	return s.String()
}

func (s *sheet) addresses(status *v1.PodStatus) {
	s.row(0, "IP:", status.PodIP)
	if len(status.PodIPs) == 0 {
		s.row(0, "IPs:", "<none>")
		return
	}
	s.row(0, "IPs:")
	for _, ip := range status.PodIPs {
		s.row(1, "IP:", ip.IP)
	}
}

func (s *sheet) seccomp(level int, p *v1.SeccompProfile) {
	s.row(level, "SeccompProfile:", string(p.Type))
	if p.LocalhostProfile != nil {
		s.row(level, "LocalhostProfile:", *p.LocalhostProfile)
	}
}

func (s *sheet) gates(p *v1.Pod) {
	if len(p.Spec.ReadinessGates) == 0 {
		return
	}
	s.row(0, "Readiness Gates:")
	s.row(1, "Type", "Status")
	for _, g := range p.Spec.ReadinessGates {
		status := "<none>"
		for _, c := range p.Status.Conditions {
			if c.Type == g.ConditionType {
				status = string(c.Status)
			}
		}
		s.row(1, string(g.ConditionType), status)
	}
}

func (s *sheet) containers(title string, list []v1.Container, statuses []v1.ContainerStatus) {
	if len(list) == 0 {
		return
	}
	s.row(0, title)
	for i := range list {
		c := &list[i]
		var status *v1.ContainerStatus
		for j := range statuses {
			if statuses[j].Name == c.Name {
				status = &statuses[j]
			}
		}
		s.row(1, c.Name+":")
		s.container(c, status)
	}
}

func (s *sheet) container(c *v1.Container, status *v1.ContainerStatus) {
	if status != nil {
		s.row(2, "Container ID:", status.ContainerID)
	}
	s.row(2, "Image:", c.Image)
	if status != nil {
		s.row(2, "Image ID:", status.ImageID)
	}
	s.ports(c.Ports)
	if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
		s.seccomp(2, c.SecurityContext.SeccompProfile)
	}
	s.words("Command:", c.Command)
	s.words("Args:", c.Args)
	if status != nil {
		s.state("State:", status.State)
		if status.LastTerminationState.Terminated != nil {
			s.state("Last State:", status.LastTerminationState)
		}
		ready := "False"
		if status.Ready {
			ready = "True"
		}
		s.row(2, "Ready:", ready)
		s.row(2, "Restart Count:", fmt.Sprint(status.RestartCount))
	}
	for _, part := range []struct {
		name string
		list v1.ResourceList
	}{{"Limits:", c.Resources.Limits}, {"Requests:", c.Resources.Requests}} {
		if len(part.list) == 0 {
			continue
		}
		s.row(2, part.name)
		for _, r := range resources(part.list) {
			s.row(3, r[0], r[1])
		}
	}
	s.nonEmpty(2, "Liveness:", probe(c.LivenessProbe))
	s.nonEmpty(2, "Readiness:", probe(c.ReadinessProbe))
	s.nonEmpty(2, "Startup:", probe(c.StartupProbe))
	s.environment(c)
	s.mounts(c)
}

func (s *sheet) ports(ports []v1.ContainerPort) {
	var names, hosts []string
	for _, p := range ports {
		protocol := cmp.Or(string(p.Protocol), "TCP")
		text := fmt.Sprintf("%d/%s", p.ContainerPort, protocol)
		if p.Name != "" {
			text += " (" + p.Name + ")"
		}
		names, hosts = append(names, text), append(hosts, fmt.Sprintf("%d/%s", p.HostPort, protocol))
	}
	one := "Port:"
	if len(ports) > 1 {
		one = "Ports:"
	}
	s.row(2, one, cmp.Or(strings.Join(names, ", "), "<none>"))
	s.row(2, "Host "+one, cmp.Or(strings.Join(hosts, ", "), "<none>"))
}

func (s *sheet) words(name string, words []string) {
	if len(words) == 0 {
		return
	}
	s.row(2, name)
	for _, w := range words {
		for line := range strings.SplitSeq(w, "\n") {
			s.row(3, line)
		}
	}
}

func (s *sheet) state(name string, st v1.ContainerState) {
	switch {
	case st.Running != nil:
		s.row(2, name, "Running")
		s.row(3, "Started:", longTime(st.Running.StartedAt))
	case st.Terminated != nil:
		t := st.Terminated
		s.row(2, name, "Terminated")
		s.nonEmpty(3, "Reason:", t.Reason)
		s.nonEmpty(3, "Message:", t.Message)
		s.row(3, "Exit Code:", fmt.Sprint(t.ExitCode))
		if t.Signal > 0 {
			s.row(3, "Signal:", fmt.Sprint(t.Signal))
		}
		s.row(3, "Started:", longTime(t.StartedAt))
		s.row(3, "Finished:", longTime(t.FinishedAt))
	default:
		s.row(2, name, "Waiting")
		if st.Waiting != nil {
			s.nonEmpty(3, "Reason:", st.Waiting.Reason)
			s.nonEmpty(3, "Message:", st.Waiting.Message)
		}
	}
}

// probe returns a probe on one line, or "" for nil.
func probe(p *v1.Probe) string {
	if p == nil {
		return ""
	}
	how := "unknown"
	switch {
	case p.Exec != nil:
		how = fmt.Sprintf("exec %v", p.Exec.Command)
	case p.HTTPGet != nil:
		path := p.HTTPGet.Path
		if !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		how = fmt.Sprintf("http-get %s://%s:%s%s", strings.ToLower(cmp.Or(string(p.HTTPGet.Scheme), "http")), p.HTTPGet.Host, p.HTTPGet.Port.String(), path)
	case p.TCPSocket != nil:
		how = fmt.Sprintf("tcp-socket %s:%s", p.TCPSocket.Host, p.TCPSocket.Port.String())
	case p.GRPC != nil:
		how = fmt.Sprintf("grpc <pod>:%d", p.GRPC.Port)
		if p.GRPC.Service != nil {
			how += " " + *p.GRPC.Service
		}
	}
	return fmt.Sprintf("%s delay=%ds timeout=%ds period=%ds #success=%d #failure=%d", how, p.InitialDelaySeconds, p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold)
}

// environment writes the environment of a container. Of Secrets and ConfigMaps it writes the
// references, never the values.
func (s *sheet) environment(c *v1.Container) {
	if len(c.EnvFrom) > 0 {
		s.row(2, "Environment Variables from:")
		for _, e := range c.EnvFrom {
			name, kind, optional := "", "ConfigMap", false
			switch {
			case e.ConfigMapRef != nil:
				name, optional = e.ConfigMapRef.Name, e.ConfigMapRef.Optional != nil && *e.ConfigMapRef.Optional
			case e.SecretRef != nil:
				name, kind, optional = e.SecretRef.Name, "Secret", e.SecretRef.Optional != nil && *e.SecretRef.Optional
			}
			if e.Prefix != "" {
				kind += " with prefix '" + e.Prefix + "'"
			}
			s.row(3, name, kind, fmt.Sprintf("Optional: %t", optional))
		}
	}
	if len(c.Env) == 0 {
		s.row(2, "Environment:", "<none>")
		return
	}
	s.row(2, "Environment:")
	for _, e := range c.Env {
		s.row(3, e.Name+":", value(e))
	}
}

func value(e v1.EnvVar) string {
	f := e.ValueFrom
	optional := func(o *bool) string { return fmt.Sprintf("Optional: %t", o != nil && *o) }
	switch {
	case f == nil:
		return e.Value
	case f.FieldRef != nil:
		return " (" + cmp.Or(f.FieldRef.APIVersion, "v1") + ":" + f.FieldRef.FieldPath + ")"
	case f.ResourceFieldRef != nil:
		return " (" + f.ResourceFieldRef.Resource + ")"
	case f.SecretKeyRef != nil:
		return fmt.Sprintf("<set to the key '%s' in secret '%s'>  %s", f.SecretKeyRef.Key, f.SecretKeyRef.Name, optional(f.SecretKeyRef.Optional))
	case f.ConfigMapKeyRef != nil:
		return fmt.Sprintf("<set to the key '%s' of config map '%s'>  %s", f.ConfigMapKeyRef.Key, f.ConfigMapKeyRef.Name, optional(f.ConfigMapKeyRef.Optional))
	}
	return "<set from another source>"
}

func (s *sheet) mounts(c *v1.Container) {
	if len(c.VolumeMounts) == 0 {
		s.row(2, "Mounts:", "<none>")
	} else {
		s.row(2, "Mounts:")
	}
	for _, m := range c.VolumeMounts {
		how := "rw"
		if m.ReadOnly {
			how = "ro"
		}
		if m.SubPath != "" {
			how += ",path=\"" + m.SubPath + "\""
		}
		s.row(3, m.MountPath+" from "+m.Name+" ("+how+")")
	}
	if len(c.VolumeDevices) > 0 {
		s.row(2, "Devices:")
		for _, d := range c.VolumeDevices {
			s.row(3, d.DevicePath+" from "+d.Name)
		}
	}
}

func toleration(t v1.Toleration) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	if t.Effect != "" {
		text += ":" + string(t.Effect)
	}
	if t.Operator == v1.TolerationOpExists && t.Value == "" {
		if t.Key != "" || t.Effect != "" {
			text += " "
		}
		text += "op=Exists"
	}
	if t.TolerationSeconds != nil {
		text += fmt.Sprintf(" for %ds", *t.TolerationSeconds)
	}
	return text
}
