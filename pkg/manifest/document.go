package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// lists has the kinds of lists, each with the kind of its items; "" is any kind.
var lists = func() map[string]string {
	all := map[string]string{"List": ""}
	for _, kind := range kinds() {
		all[kind+"List"] = kind
	}
	return all
}()

// kinds returns the kinds that nodectl reads, without the lists.
func kinds() []string {
	return append([]string{"Pod", pod.KindConfigMap, pod.KindSecret, pod.KindClaim, pod.KindService}, pod.WorkloadKinds()...)
}

// versionOf returns the API version of a kind that nodectl reads.
func versionOf(kind string) string {
	switch strings.TrimSuffix(kind, "List") {
	case pod.KindDeployment, pod.KindReplicaSet, pod.KindStatefulSet, pod.KindDaemonSet:
		return "apps/v1"
	case pod.KindJob, pod.KindCronJob:
		return "batch/v1"
	}
	return "v1"
}

// isConfig reports whether kind is that of a config object or a Service.
func isConfig(kind string) bool {
	return kind == pod.KindConfigMap || kind == pod.KindSecret || kind == pod.KindClaim || kind == pod.KindService
}

// document reads one document.
func (r *reader) document(d doc) {
	v, ok := d.value.(map[string]any)
	if !ok {
		r.incomplete(*notObject(d.at.line, d.at.col, kindOf(d.value)))
		return
	}
	o := object{value: v, json: d.json, at: d.at}
	kind, _ := v["kind"].(string)
	if items, ok := lists[kind]; ok {
		if r.header(&o, kind) {
			r.list(o, items)
		}
		return
	}
	r.single(o, "")
}

func notObject(line, col int, got string) *pod.Problem {
	return &pod.Problem{Line: line, Column: col, Msg: "expected an object with apiVersion and kind, got " + got,
		Hint: "a manifest holds Pods, workloads such as Deployments, Services, ConfigMaps, Secrets, PersistentVolumeClaims or a List of them"}
}

func kindOf(v any) string {
	switch v.(type) {
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "plain text"
}

// list reads the items of a list. An item without kind and apiVersion gets those of its
// list.
func (r *reader) list(o object, kind string) {
	c := checker{validate: r.o.Validate, o: o, guesses: &r.guesses}
	c.duplicates(o.at, "")
	for _, name := range slices.Sorted(maps.Keys(o.value)) {
		switch name {
		case "apiVersion", "kind", "metadata", "items":
		default:
			line, col := o.at.key(name)
			p := pod.Problem{Line: line, Column: col, Path: name, Msg: "unknown field " + quote(name)}
			if best := c.guess(name, []string{"items", "metadata"}); best != "" {
				p.Msg += fmt.Sprintf(" (did you mean %q?)", best)
			}
			c.field(p)
		}
	}
	r.take(&c)
	items, ok := o.value["items"].([]any)
	if !ok {
		// A truncated list does not mean an empty set (F40).
		line, col := o.at.key("items")
		r.incomplete(pod.Problem{Line: line, Column: col, Path: "items", Msg: "expected a list", Hint: "write [] for an empty list"})
		return
	}
	for i, item := range items {
		at := innerItem(innerOr(o.at, "items"), i)
		path := fmt.Sprintf("items[%d]", i)
		v, ok := item.(map[string]any)
		if !ok {
			r.incomplete(pod.Problem{Line: at.line, Column: at.col, Path: path, Msg: "expected an object, got " + kindOf(item)})
			continue
		}
		r.single(object{value: v, at: at, path: path + "."}, kind)
	}
}

func innerOr(at *place, name string) *place {
	if f := at.field(name); f != nil {
		return f.value
	}
	return at
}

// take adds the problems and warnings of a checker to those of the file.
func (r *reader) take(c *checker) {
	for _, p := range c.problems {
		r.problem(p)
	}
	for _, p := range c.warnings {
		p.File = r.o.File
		r.warnings = append(r.warnings, p)
	}
}

// single reads one object that is not a list. implied is the kind of the items of its list, "" for
// none.
func (r *reader) single(o object, implied string) {
	kind, _ := o.value["kind"].(string)
	version, _ := o.value["apiVersion"].(string)
	if why := ignoredKind(kind, version); why != "" && implied == "" {
		r.notice(o, kind, why)
		return
	}
	if !r.header(&o, implied) {
		return
	}
	switch o.kind {
	case "Pod":
		r.pod(o)
	case "ConfigMap":
		r.configMap(o)
	case "Secret":
		r.secret(o)
	case "PersistentVolumeClaim":
		r.claim(o)
	case pod.KindService:
		r.service(o)
	default:
		r.workload(o)
	}
}

// header sets the kind of an object from its kind and apiVersion. It returns false, and rejects the
// object, if nodectl does not read such an object here.
func (r *reader) header(o *object, implied string) bool {
	kind, hasKind := o.value["kind"].(string)
	version, hasVersion := o.value["apiVersion"].(string)
	if !hasKind && implied != "" && o.value["kind"] == nil {
		kind, hasKind = implied, true
	}
	if !hasVersion && implied != "" && o.value["apiVersion"] == nil {
		version, hasVersion = versionOf(implied), true
	}
	o.kind = kind
	_, isList := lists[kind]
	known := kind == "Pod" || isConfig(kind) || pod.IsWorkload(kind)
	switch {
	case !hasKind:
		hint := kindsHint
		if _, ok := o.value["spec"]; ok && (version == "v1" || version == "") {
			hint = `write "kind: Pod"`
		}
		r.reject(*o, o.problem("kind", "required", hint))
	case isList && implied != kind:
		r.reject(*o, o.problem("kind", "a list inside a list is not supported", "put its items into one list"))
	case !known && !isList:
		p := o.problem("kind", fmt.Sprintf("kind %s is not supported", quote(kind)), kindHint(kind))
		p.Path = strings.TrimSuffix(o.path, ".")
		r.reject(*o, p)
	case !isList && implied != "" && kind != implied:
		r.reject(*o, o.problem("kind", fmt.Sprintf("a %sList cannot contain a %s", implied, kind), `write "kind: List" to mix kinds`))
	case !hasVersion:
		r.reject(*o, o.problem("apiVersion", "required", versionHint(kind, "")))
	case version != versionOf(kind):
		r.reject(*o, o.problem("apiVersion", fmt.Sprintf("%s is not supported for kind %s", quote(version), kind), versionHint(kind, version)))
	case r.o.Member && (pod.IsWorkload(kind) || kind == pod.KindService):
		p := o.problem("kind", fmt.Sprintf("kind %s does not run from a manifest on a node of a cluster", quote(kind)),
			"apply it to the cluster (kubectl apply), or run nodectl without --kubeconfig")
		p.Path = strings.TrimSuffix(o.path, ".")
		r.reject(*o, p)
	default:
		return true
	}
	return false
}

// versionHint returns the hint that names the API version of a kind. version is the one in the manifest.
func versionHint(kind, version string) string {
	hint := fmt.Sprintf("write %q", "apiVersion: "+versionOf(kind))
	switch version {
	case "extensions/v1beta1", "apps/v1beta1", "apps/v1beta2":
		hint += ", which requires spec.selector"
	}
	return hint
}

// reject records the problems of an object that may be a pod or a workload. If its name is known, its
// last good version stays in use. If not, those of all pods and workloads of the file stay in use.
func (r *reader) reject(o object, problems ...pod.Problem) {
	key, named := r.key(o)
	for _, p := range problems {
		if named && o.kind == "Pod" {
			p.Pod = key
		}
		r.problem(p)
	}
	if _, isList := lists[o.kind]; isList {
		r.out.Incomplete = true
		return
	}
	switch {
	case isConfig(o.kind): // a problem of the file is enough to keep the last good version
	case !named:
		r.out.Incomplete = true
	case pod.IsWorkload(o.kind):
		r.out.BrokenObjects = append(r.out.BrokenObjects, pod.ObjectKey{Kind: o.kind, Key: key})
	default:
		r.out.Broken = append(r.out.Broken, key)
		if mayBeWorkload(o.kind) {
			key, _ = r.key(object{kind: pod.KindDeployment, value: o.value})
			r.out.BrokenObjects = append(r.out.BrokenObjects, pod.ObjectKey{Key: key})
		}
	}
}

// mayBeWorkload reports whether kind is missing, or similar to a kind of workload.
func mayBeWorkload(kind string) bool {
	const longest = 30
	return kind == "" || kind != "Pod" && len(kind) <= longest && nearest(kind, pod.WorkloadKinds()) != ""
}

// key returns the final key of the pod or workload in o; the result is false if o has no name.
func (r *reader) key(o object) (pod.Key, bool) {
	meta, _ := o.value["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if name == "" {
		return pod.Key{}, false
	}
	namespace, _ := meta["namespace"].(string)
	if pod.IsWorkload(o.kind) {
		return pod.Key{Namespace: cmp.Or(namespace, "default"), Name: name}, true
	}
	return r.keyOf(namespace, name), true
}

// keyOf returns the final key of a pod, from the namespace and name in its manifest.
func (r *reader) keyOf(namespace, name string) pod.Key {
	return pod.Key{Namespace: cmp.Or(namespace, "default"), Name: r.finalName(name)}
}

// finalName returns a pod's name on this node (C-1.5.7).
func (r *reader) finalName(name string) string {
	if !r.o.Static || r.o.Node == "" {
		return name
	}
	return name + "-" + r.o.Node
}

const kindsHint = "nodectl reads the kinds Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob, Service, ConfigMap, Secret, PersistentVolumeClaim and List"

func kindHint(kind string) string {
	const reads = kindsHint
	switch kind {
	case "ReplicationController":
		return "write a Deployment (apps/v1), with spec.selector as matchLabels"
	case "PodTemplate":
		return "a template alone runs no pod: write a Deployment (apps/v1) or a Job (batch/v1) with it"
	case "NetworkPolicy":
		return "nodectl does not filter traffic between pods: without the object, every pod reaches every other one"
	case "Ingress", "IngressClass", "Gateway", "GatewayClass", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute":
		return "run a reverse proxy as a workload, with a Service of type LoadBalancer: see docs/howto/reverse-proxy.md"
	case "Endpoints", "EndpointSlice":
		return "the endpoints of a Service are the pods that it selects"
	case "PersistentVolume", "StorageClass":
		return reads + "; a claim is a directory on the node"
	case "Namespace":
		return reads + "; a namespace needs no object"
	case "Kustomization", "Component":
		return "render it first: kustomize build DIR | nodectl … -f -"
	}
	if best := nearest(kind, slices.Concat(kinds(), slices.Sorted(maps.Keys(lists)))); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return reads
}

// bytes returns the object as JSON.
func (o object) bytes() []byte {
	if o.json != nil {
		return o.json
	}
	js, err := json.Marshal(o.value)
	if err != nil {
		return []byte("null") // a value that was decoded from JSON can be encoded as JSON
	}
	return js
}
