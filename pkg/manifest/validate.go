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

// validatePod returns the problems that the API's validation of new pods finds in a defaulted pod
// (C-1.5.11), without places. A pod with too many ports has only that problem.
func validatePod(p *v1.Pod) []pod.Problem {
	if bad, is := pod.PortsProblem(&p.Spec); is {
		return []pod.Problem{bad}
	}
	in, err := internal(p)
	if err != nil {
		return []pod.Problem{{Msg: "not a Pod: " + err.Error()}}
	}
	// Allow privileged containers, as the kubelet does. A source policy can forbid them.
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

// nameEntries changes the path of each error whose path is field, that of the map m: to path and the key
// of the entry.
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

// entry returns the key in brackets to which bad belongs. bad is a key or a value of m, from an error
// whose path does not name the entry.
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

// fieldProblems returns the errors of validation as problems. If secret is true, they contain no values.
func fieldProblems(errs field.ErrorList, secret bool) []pod.Problem {
	var out []pod.Problem
	known := make(map[pod.Problem]bool, len(errs))
	details := map[string]string{} // shortened details, since many errors have the same one
	for _, e := range errs {
		detail, ok := details[e.Detail]
		if !ok {
			detail = strings.TrimSpace(regexNote.ReplaceAllString(e.Detail, ""))
			details[e.Detail] = detail
		}
		if e.BadValue == redacted { // the detail quotes a part of the value
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

// redacted stands for a Secret's value in the errors of validation. Validation reads only one kind of
// value: the JSON with the passwords of registries.
const redacted = "<secret contents redacted>"

// paths has the field paths of known problems.
type paths map[string]bool

// covers reports whether path, or a field that contains it, is in ps.
func (ps paths) covers(path string) bool {
	for i := range len(path) {
		if (path[i] == '.' || path[i] == '[') && ps[path[:i]] {
			return true
		}
	}
	return ps[path]
}

// fieldPath converts a path in the internal type to the path in a manifest.
func fieldPath(path string) string {
	path = strings.Replace(path, "spec.Host", "spec.host", 1)
	for _, f := range []string{"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"} {
		path = strings.Replace(path, "spec.securityContext."+f, "spec."+f, 1)
	}
	return path
}

// regexNote matches the part of validation's messages that has a regular expression.
var regexNote = regexp.MustCompile(`,? *\(?(?:e\.g\. .*, )?regex used for validation is '[^']*'\)?`)

// maxListed is the longest list of allowed values in a message, in bytes. For example, there are 65
// signals.
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

// indexes matches the indexes and keys in a field path.
var indexes = regexp.MustCompile(`\[[^]]*\]`)

// hintFor returns the remedy for frequent mistakes, else "".
func hintFor(e *field.Error) string {
	path := indexes.ReplaceAllString(e.Field, "[]")
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
