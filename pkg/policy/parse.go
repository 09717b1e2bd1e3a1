package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/pod-security-admission/api"

	"go.yaml.in/yaml/v3"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The content of a policy file. docs/source-policy.md describes each field.
type (
	document struct {
		APIVersion text       `yaml:"apiVersion"`
		Kind       text       `yaml:"kind"`
		Rules      []ruleText `yaml:"rules"`
		Default    *allowance `yaml:"default"`
	}
	ruleText struct {
		At        text         `yaml:"-"`
		Name      text         `yaml:"name"`
		Sources   []sourceText `yaml:"sources"`
		allowance `yaml:",inline"`
	}
	sourceText struct {
		At       text `yaml:"-"`
		Kind     text `yaml:"kind"`
		Location text `yaml:"location"`
	}
	allowance struct {
		PodSecurity *securityText  `yaml:"podSecurity"`
		Namespaces  []text         `yaml:"namespaces"`
		HostPaths   []hostPathText `yaml:"hostPaths"`
		Images      []text         `yaml:"images"`
		ObjectsFrom []text         `yaml:"objectsFrom"`
		UIDs        text           `yaml:"uids"`
		Priority    *number        `yaml:"priority"`
		NodePorts   []text         `yaml:"nodePorts"`
		ExternalIPs []text         `yaml:"externalIPs"`
		Balancers   *bool          `yaml:"loadBalancers"`
	}
	securityText struct {
		At      text       `yaml:"-"`
		Level   text       `yaml:"level"`
		Version text       `yaml:"version"`
		Exempt  exemptText `yaml:"exempt"`
	}
	exemptText struct {
		Namespaces []text `yaml:"namespaces"`
	}
	hostPathText struct {
		At       text `yaml:"-"`
		Prefix   text `yaml:"prefix"`
		ReadOnly bool `yaml:"readOnly"`
	}
)

// Parse reads a policy file. similar returns which of some known words an unknown
// one is most likely meant to be, "" for none. With any problem there is no Policy.
func Parse(data []byte, file string, similar func(word string, known []string) string) (*Policy, []pod.Problem) {
	d := &decoder{file: file, similar: similar}
	var doc document
	if d.document(data, &doc); len(d.problems) > 0 {
		return nil, d.problems
	}
	p := d.policy(&doc)
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	return p, nil
}

// document reads the one document of a file.
func (d *decoder) document(data []byte, into *document) {
	in := yaml.NewDecoder(bytes.NewReader(data))
	var root, more yaml.Node
	switch err := in.Decode(&root); {
	case errors.Is(err, io.EOF):
		d.problem(text{line: 1}, "file is empty", "a policy without rules allows nothing: write a rule, or remove --source-policy")
		return
	case err != nil:
		d.broken(err)
		return
	}
	switch err := in.Decode(&more); {
	case err == nil:
		d.problem(text{line: more.Line, column: more.Column}, "a second document", "a policy has one document")
		return
	case !errors.Is(err, io.EOF):
		d.broken(err)
		return
	}
	d.decode(root.Content[0], into)
}

// policy converts the file's content into a Policy.
func (d *decoder) policy(doc *document) *Policy {
	top := text{line: 1}
	d.is("apiVersion", doc.APIVersion, APIVersion)
	d.is("kind", doc.Kind, Kind)
	p := &Policy{file: d.file}
	if len(doc.Rules) == 0 && doc.Default == nil {
		d.problem(top, "no rule and no default", "such a policy allows nothing: write a list of rules, or a default for the sources that no rule matches")
	}
	names := map[string]int{}
	for i := range doc.Rules {
		r := d.rule(&doc.Rules[i])
		if at := doc.Rules[i].Name; names[r.name] > 0 {
			d.problem(at, fmt.Sprintf("rule %q is already defined at line %d", r.name, names[r.name]), "")
		} else {
			names[r.name] = at.line
		}
		p.rules = append(p.rules, r)
	}
	if doc.Default != nil {
		p.fallback = d.allowance(byDefault, doc.Default)
	}
	var err error
	if p.security, err = newEvaluator(); err != nil {
		d.problem(top, err.Error(), "")
	}
	return p
}

// is reports a heading that is not the one there is.
func (d *decoder) is(field string, t text, want string) {
	if t.value != want {
		t.path, t.line = field, max(t.line, 1)
		d.problem(t, fmt.Sprintf("%q is not supported", t.value), "write "+field+": "+want)
	}
}

func (d *decoder) rule(t *ruleText) *rule {
	name := t.Name
	switch {
	case name.line == 0:
		d.problem(t.At, "the rule has no name", "a rejection names its rule")
	case name.value == byDefault:
		d.problem(name, "the name default is reserved", "write default next to rules, or give the rule another name")
	case len(validation.IsDNS1123Subdomain(name.value)) > 0:
		d.problem(name, fmt.Sprintf("%s cannot be a name", quote(name.value)), "write lower-case letters, digits, - and .")
	}
	r := d.allowance(name.value, &t.allowance)
	if len(t.Sources) == 0 {
		d.problem(t.At, fmt.Sprintf("rule %q has no sources", name.value), "write kinds, locations or both: sources: [{kind: http}]")
	}
	for _, s := range t.Sources {
		d.oneOf(s.Kind, kinds())
		l := newLocation(s.Location.value)
		switch {
		case s.Kind.line == 0 && s.Location.line == 0:
			d.problem(s.At, "a source without kind and location", "write under default what applies to all other sources")
		case s.Location.line > 0 && s.Location.value == "":
			d.problem(s.Location, "is empty", "remove it to match every location")
		case badHost(l.host):
			d.problem(s.Location, "in a host name, * must be the whole name or its first label", "write https://*.example.com/*")
		case s.Kind.value == "http" && l.scheme == "" && !l.all():
			d.problem(s.Location, fmt.Sprintf("%s is not a URL", quote(s.Location.value)), "write it with its scheme, such as https://example.com/*")
		}
		r.sources = append(r.sources, sourcePattern{kind: s.Kind.value, location: l})
	}
	return r
}

// allowance reads the fields that a rule and the default have in common.
func (d *decoder) allowance(name string, a *allowance) *rule {
	r := &rule{name: name, level: api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()}}
	if a.PodSecurity != nil {
		d.security(a.PodSecurity, r)
	}
	r.namespaces = d.patterns(a.Namespaces)
	if a.HostPaths != nil {
		r.hostPaths = d.roots(a.HostPaths)
	}
	if a.Images != nil {
		r.images = new([]image)
		for _, t := range a.Images {
			i, err := newImage(t.value)
			if err != nil {
				d.problem(t, fmt.Sprintf("%s is not an image pattern: %s", quote(t.value), err), "")
			}
			*r.images = append(*r.images, i)
		}
	}
	d.oneOf(a.UIDs, []string{uidsClaimed, uidsDerived})
	r.derived = a.UIDs.value == uidsDerived
	if a.Priority != nil {
		r.priority = &a.Priority.value
	}
	d.services(a, r)
	for _, t := range a.ObjectsFrom {
		d.oneOf(t, kinds())
		r.objects = append(r.objects, t.value)
	}
	return r
}

// The values of uids.
const (
	uidsClaimed = "claimed"
	uidsDerived = "derived"
)

func (d *decoder) security(s *securityText, r *rule) {
	levels := []string{string(api.LevelBaseline), string(api.LevelPrivileged), string(api.LevelRestricted)}
	if s.Level.line == 0 {
		d.problem(s.At, "podSecurity without a level", "write level and one of "+strings.Join(levels, ", "))
	}
	d.oneOf(s.Level, levels)
	r.level.Level = api.Level(s.Level.value)
	if s.Version.line > 0 {
		v, err := api.ParseVersion(s.Version.value)
		if err != nil {
			d.problem(s.Version, fmt.Sprintf("%s %s", quote(s.Version.value), err), "")
		}
		r.level.Version = v
	}
	if exempt := d.patterns(s.Exempt.Namespaces); exempt != nil {
		r.exempt = *exempt
	}
}

// patterns returns the patterns of a list that is written, nil of one that is not.
func (d *decoder) patterns(list []text) *[]string {
	if list == nil {
		return nil
	}
	out := []string{}
	for _, t := range list {
		if t.value == "" {
			d.problem(t, "is empty", "")
		}
		out = append(out, t.value)
	}
	return &out
}

func (d *decoder) roots(list []hostPathText) *[]root {
	out := []root{}
	for _, h := range list {
		prefix := h.Prefix.value
		switch {
		case h.Prefix.line == 0:
			d.problem(h.At, "a host path without a prefix", "write prefix: /data")
		case !strings.HasPrefix(prefix, "/"), slices.Contains(strings.Split(prefix, "/"), ".."), strings.Contains(prefix, "*"):
			d.problem(h.Prefix, fmt.Sprintf("%s is not an absolute path without .. and *", quote(prefix)), "write prefix: /data for /data and everything below it")
		}
		prefix = path.Clean(prefix)
		if slices.ContainsFunc(out, func(r root) bool { return r.prefix == prefix }) {
			d.problem(h.Prefix, fmt.Sprintf("%s is listed twice", quote(prefix)), "")
		}
		out = append(out, root{prefix: prefix, readOnly: h.ReadOnly})
	}
	return &out
}
