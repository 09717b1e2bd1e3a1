package manifest

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podapi "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/nodectl/nodectl/pkg/pod"
)

// validatePod returns the problems of a defaulted pod by the API's validation of new pods
// (C-1.5.11), without places. A pod with too many ports is not validated further.
func validatePod(p *v1.Pod) []pod.Problem {
	if bad, is := pod.PortsProblem(&p.Spec); is {
		return []pod.Problem{bad}
	}
	in, err := internal(p)
	if err != nil {
		return []pod.Problem{{Msg: "not a Pod: " + err.Error()}}
	}
	// The kubelet allows it too; a source policy can forbid it.
	capabilities.Setup(true, 0)
	opts := podapi.GetValidationOptionsFromPodSpecAndMeta(&in.Spec, nil, &in.ObjectMeta, nil)
	errs := validation.ValidatePodCreate(in, opts)
	if len(errs) == 0 {
		return nil
	}
	nameEntries(errs, "metadata.labels", "metadata.labels", p.Labels)
	nameEntries(errs, "metadata.annotations", "metadata.annotations", p.Annotations)
	out := fieldProblems(errs, false)
	for i := range out {
		if out[i].Path == "metadata.name" {
			out[i].Hint = "nodectl appends the node's name: use lower-case letters, digits, - and ., 253 characters in total"
		}
	}
	return out
}

// nameEntries replaces the path in errors about the map m, which have field as their path, by
// that of the entry.
func nameEntries(errs field.ErrorList, field, path string, m map[string]string) {
	var keys map[string]string
	for _, e := range errs {
		if e.Field != field {
			continue
		}
		if keys == nil {
			keys = keysByValue(m)
		}
		e.Field = path + entry(m, keys, e.BadValue)
	}
}

// entry returns the key in brackets that bad, a key or a value of m, stands
// for: upstream names the map alone.
func entry(m, keys map[string]string, bad any) string {
	s, _ := bad.(string)
	if _, ok := m[s]; ok {
		return "[" + s + "]"
	}
	if key, ok := keys[s]; ok && key != "" {
		return "[" + key + "]"
	}
	return ""
}

// keysByValue returns the first of the keys of each value of m.
func keysByValue(m map[string]string) map[string]string {
	keys := make(map[string]string, len(m))
	for k, v := range m {
		if first, ok := keys[v]; !ok || k < first {
			keys[v] = k
		}
	}
	return keys
}

// fieldProblems puts validation's errors into words. Values of a secret are
// left out.
func fieldProblems(errs field.ErrorList, secret bool) []pod.Problem {
	var out []pod.Problem
	known := make(map[pod.Problem]bool, len(errs))
	details := map[string]string{} // many errors say the same
	for _, e := range errs {
		detail, ok := details[e.Detail]
		if !ok {
			detail = strings.TrimSpace(regexNote.ReplaceAllString(e.Detail, ""))
			details[e.Detail] = detail
		}
		if e.BadValue == redacted { // the parser's text, which shows the unexpected token
			detail = "must be JSON"
		}
		p := pod.Problem{Path: fieldPath(e.Field), Msg: wording(e, detail, secret), Hint: hintFor(e)}
		if !known[p] {
			known[p] = true
			out = append(out, p)
		}
	}
	return out
}

// redacted replaces a Secret's value where validation reads it: only one kind of value,
// the JSON of registries' passwords.
const redacted = "<secret contents redacted>"

// paths are the places of problems that are known.
type paths map[string]bool

// covers reports whether one of them is path or above it.
func (ps paths) covers(path string) bool {
	for i := range len(path) {
		if (path[i] == '.' || path[i] == '[') && ps[path[:i]] {
			return true
		}
	}
	return ps[path]
}

// fieldPath turns the internal type's paths into those of a manifest.
func fieldPath(path string) string {
	path = strings.Replace(path, "spec.Host", "spec.host", 1)
	for _, f := range []string{"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"} {
		path = strings.Replace(path, "spec.securityContext."+f, "spec."+f, 1)
	}
	return path
}

// regexNote is the part of upstream's messages that only a program wants.
var regexNote = regexp.MustCompile(`,? *\(?(?:e\.g\. .*, )?regex used for validation is '[^']*'\)?`)

// maxListed is how long, in bytes, a list of all that a field takes may be for a
// message: there are 65 signals.
const maxListed = 200

func wording(e *field.Error, detail string, secret bool) string {
	value := ""
	if !secret {
		value = shownValue(e.BadValue)
	}
	switch e.Type {
	case field.ErrorTypeRequired:
		return with("required", detail)
	case field.ErrorTypeForbidden:
		return with("not allowed here", detail)
	case field.ErrorTypeDuplicate:
		return with(strings.TrimSpace("duplicate value "+value), detail)
	case field.ErrorTypeNotFound:
		return with(strings.TrimSpace("not found: "+value), detail)
	case field.ErrorTypeNotSupported:
		if len(detail) > maxListed {
			detail = ""
		}
		return with(strings.TrimSpace("unknown value "+value), detail)
	case field.ErrorTypeTooLong, field.ErrorTypeTooMany:
		return detail
	case field.ErrorTypeInvalid, field.ErrorTypeTypeInvalid:
		return with(strings.TrimSpace("invalid value "+value), detail)
	}
	return with("not valid", detail)
}

func with(what, detail string) string {
	if detail == "" {
		return what
	}
	return what + ": " + detail
}

// shownValue returns a plain value as messages quote it, "" for anything else.
func shownValue(v any) string {
	r := reflect.ValueOf(v)
	for r.Kind() == reflect.Pointer && !r.IsNil() {
		r = r.Elem()
	}
	switch kind := r.Kind(); {
	case kind == reflect.String:
		return quote(r.String())
	case kind == reflect.Bool, kind >= reflect.Int && kind <= reflect.Int64:
		return fmt.Sprint(r.Interface())
	}
	return ""
}

var place0 = regexp.MustCompile(`\[[^]]*\]`)

// hintFor returns the remedy for frequent mistakes, else "".
func hintFor(e *field.Error) string {
	path := place0.ReplaceAllString(e.Field, "[]")
	path = strings.TrimPrefix(strings.TrimPrefix(path, "spec.jobTemplate."), "spec.template.") // of a workload
	switch {
	case path == "spec.selector" && e.Type == field.ErrorTypeRequired:
		return "write selector: {matchLabels: …} with labels of the template"
	case path == "spec.selector" && strings.HasSuffix(e.Detail, "auto-generated"):
		return "remove the selector: the pods of a Job are found without one"
	case path == "metadata.labels" && strings.HasPrefix(e.Detail, noMatch):
		return "give the template all labels of spec.selector"
	case path == "spec.containers" && e.Type == field.ErrorTypeRequired:
		return "a pod needs at least one container"
	case strings.HasSuffix(path, "].image") && e.Type == field.ErrorTypeRequired:
		return "write the image's name, such as registry/name:tag"
	case strings.HasSuffix(path, ".volumeMounts[].name") && e.Type == field.ErrorTypeNotFound:
		return "no volume under spec.volumes has this name"
	case strings.HasSuffix(path, ".lifecycle.stopSignal") && e.Type == field.ErrorTypeForbidden:
		return "write spec.os: {name: linux}"
	case strings.HasSuffix(path, ".lifecycle.stopSignal"):
		return "write a signal's full name, such as SIGINT or SIGRTMIN+3"
	case strings.HasSuffix(path, "Probe") && e.Type == field.ErrorTypeRequired:
		return "add exec, httpGet, tcpSocket or grpc to it"
	case strings.Contains(path, ".lifecycle.p") && strings.Count(path, ".") == 3 && e.Type == field.ErrorTypeRequired:
		return "add exec, httpGet or sleep to it"
	case path == "spec.initContainers[].livenessProbe", path == "spec.initContainers[].readinessProbe",
		path == "spec.initContainers[].startupProbe", path == "spec.initContainers[].lifecycle":
		return "restartPolicy: Always makes it a sidecar, which runs alongside the containers"
	case e.Field == "spec.restartPolicy" && e.Type == field.ErrorTypeNotSupported:
		return "write Always, OnFailure or Never"
	case e.Type == field.ErrorTypeInvalid && (path == "spec.containers[].name" || path == "spec.initContainers[].name" || path == "spec.volumes[].name"):
		return "write lower-case letters, digits and -"
	}
	return ""
}
