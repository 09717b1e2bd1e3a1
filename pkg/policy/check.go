package policy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podstatic"
)

// maxProblems is how many problems of one pod are shown.
const maxProblems = 20

// root is a host path that pods may mount, and all below it.
type root struct {
	prefix   string // clean
	readOnly bool
}

// holds reports whether clean lies at or below the root.
func (r root) holds(clean string) bool {
	return clean == r.prefix || r.prefix == "/" || strings.HasPrefix(clean, r.prefix+"/")
}

// check returns a problem for everything in a pod that the rule does not allow.
func (r *rule) check(security podsecurity.Evaluator, s *pod.Spec) []pod.Problem {
	p := s.Pod
	problems := r.checkNamespace(p.Namespace)
	problems = append(problems, r.checkIdentity(s)...)
	problems = append(problems, r.checkVolumes(&p.Spec)...)
	problems = append(problems, r.checkSecurity(security, p)...)
	problems = append(problems, r.checkDevices(s)...)
	problems = append(problems, r.checkHostPaths(&p.Spec)...)
	return append(problems, r.checkImages(&p.Spec)...)
}

// checkTemplate returns a problem for each thing in a workload's pod template that the rule does
// not allow. at is the field of the template. The template is checked with the API's defaults,
// because its pods will have them. Of the claim templates only the namespace could matter: the
// claims are in that of their workload.
func (r *rule) checkTemplate(security podsecurity.Evaluator, o *pod.Object, template *v1.PodTemplateSpec, at string) []pod.Problem {
	defaulted := podstatic.DefaultTemplate(template)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: defaulted.Labels, Annotations: defaulted.Annotations},
		Spec:       defaulted.Spec,
	}
	p.UID = types.UID(pod.StaticUID(p.Spec.NodeName, p.Namespace, p.Name)) // no pod of a workload has a UID of its author
	var problems []pod.Problem
	for _, bad := range r.check(security, &pod.Spec{Key: o.Key, Origin: o.Origin, Pod: p}) {
		if bad.Path != "metadata.namespace" { // the workload has this problem itself
			bad.Path = at + "." + bad.Path
			problems = append(problems, bad)
		}
	}
	for i, c := range o.ClaimTemplates() {
		if c.Namespace != "" && c.Namespace != o.Namespace {
			for _, bad := range r.checkNamespace(c.Namespace) {
				bad.Path = fmt.Sprintf("spec.volumeClaimTemplates[%d].%s", i, bad.Path)
				problems = append(problems, bad)
			}
		}
	}
	return problems
}

// refusal returns one problem: the forbidden item, and the reason.
func (r *rule) refusal(path, what, why, hint string) pod.Problem {
	return pod.Problem{Path: path, Msg: fmt.Sprintf("source policy rule %q does not allow %s: %s", r.name, what, why), Hint: hint}
}

func (r *rule) checkNamespace(namespace string) []pod.Problem {
	if r.namespaces == nil || anyOf(*r.namespaces, namespace) {
		return nil
	}
	return []pod.Problem{r.refusal("metadata.namespace", "namespace "+quote(namespace), "no pattern of namespaces matches", allowed(*r.namespaces))}
}

// checkIdentity refuses a UID that the pod's author chose, which could take another
// pod's directories, and a priority above the highest, which could preempt other pods.
func (r *rule) checkIdentity(s *pod.Spec) []pod.Problem {
	var problems []pod.Problem
	if r.derived && pod.HasChosenUID(s) {
		problems = append(problems, r.refusal("metadata.uid", "uid "+quote(s.UID()), "pods must not choose their UIDs", "remove it: nodectl derives it from node, namespace and name"))
	}
	if r.priority == nil {
		return problems
	}
	spec, most := &s.Pod.Spec, *r.priority
	if spec.Priority != nil && int64(*spec.Priority) > most {
		return append(problems, r.refusal("spec.priority", fmt.Sprintf("priority %d", *spec.Priority), fmt.Sprintf("the highest allowed is %d", most), ""))
	}
	class, known := pod.PriorityOf(spec.PriorityClassName)
	switch {
	case known && int64(class) > most:
		problems = append(problems, r.refusal("spec.priorityClassName", "priority class "+quote(spec.PriorityClassName), fmt.Sprintf("its priority is %d, and the highest allowed is %d", class, most), ""))
	case !known && spec.Priority == nil && most < 0:
		problems = append(problems, r.refusal("spec.priority", "a pod without a priority", fmt.Sprintf("its priority is 0, and the highest allowed is %d", most), fmt.Sprintf("write priority: %d", most)))
	}
	return problems
}

// checkSecurity checks a pod against the rule's Pod Security level. This node runs
// Linux, so exceptions of the level for pods of another system do not apply.
func (r *rule) checkSecurity(security podsecurity.Evaluator, p *v1.Pod) []pod.Problem {
	if anyOf(r.exempt, p.Namespace) {
		return nil
	}
	spec := &p.Spec
	if spec.OS != nil && spec.OS.Name != v1.Linux {
		linux := *spec
		linux.OS, spec = nil, &linux
	}
	var problems []pod.Problem
	for _, result := range security.EvaluatePod(r.level, &p.ObjectMeta, spec) {
		if result.Allowed {
			continue
		}
		id, reason, _ := strings.Cut(result.ForbiddenReason, idEnd)
		why := fmt.Sprintf("pod security level %s, check %s", r.level.Level, id)
		if result.ForbiddenDetail != "" {
			why += ": " + short(result.ForbiddenDetail)
		}
		problems = append(problems, r.refusal(checkPath(id), cmp.Or(short(reason), podsecurity.UnknownForbiddenReason), why, ""))
	}
	return problems
}

// checkDevices refuses CDI devices that the pod names itself, unless its level allows all: a
// device may mount host paths and run hooks. Those that a device plugin adds are not checked.
func (r *rule) checkDevices(s *pod.Spec) []pod.Problem {
	if r.level.Level == api.LevelPrivileged || anyOf(r.exempt, s.Namespace) || s.Origin.FromAPI() || !pod.NamesCDIDevices(s.Pod.Annotations) {
		return nil
	}
	return []pod.Problem{r.refusal("metadata.annotations", "CDI devices", fmt.Sprintf("pod security level %s", r.level.Level), "use the resource of a device plugin")}
}

// checkVolumes refuses volumes that are not one thing: Kubernetes' checks, the rule's own
// keys and the mounts could each take another of their sources for the volume.
func (r *rule) checkVolumes(spec *v1.PodSpec) []pod.Problem {
	var problems []pod.Problem
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; !pod.OneSource(&v.VolumeSource) {
			problems = append(problems, r.refusal(fmt.Sprintf("spec.volumes[%d]", i), "volume "+quote(v.Name), "it does not have exactly one source", ""))
		}
	}
	return problems
}

// idEnd separates a check's ID from its reason.
const idEnd = "\x00"

// newEvaluator returns Kubernetes' own checks, which report their IDs.
func newEvaluator() (podsecurity.Evaluator, error) {
	checks := podsecurity.DefaultChecks()
	for i, check := range checks {
		versions := slices.Clone(check.Versions)
		for j, v := range versions {
			versions[j].CheckPod = func(meta *metav1.ObjectMeta, spec *v1.PodSpec) podsecurity.CheckResult {
				result := v.CheckPod(meta, spec)
				result.ForbiddenReason = string(check.ID) + idEnd + result.ForbiddenReason
				return result
			}
		}
		checks[i].Versions = versions
	}
	return podsecurity.NewEvaluator(checks, nil)
}

// checkPath returns the field that a check is about, where it is about one.
func checkPath(id string) string {
	switch id {
	case "hostPathVolumes", "restrictedVolumes":
		return "spec.volumes"
	case "sysctls":
		return "spec.securityContext.sysctls"
	}
	return "spec"
}

// checkHostPaths compares paths as they are written: it does not follow links below a
// root.
func (r *rule) checkHostPaths(spec *v1.PodSpec) []pod.Problem {
	if r.hostPaths == nil {
		return nil
	}
	var problems []pod.Problem
	var mounts mounts
	for i := range spec.Volumes {
		if at := spec.Volumes[i].HostPath; at != nil {
			if mounts == nil {
				mounts = mountsOf(spec)
			}
			problems = append(problems, r.checkHostPath(spec, i, at, mounts)...)
		}
	}
	return problems
}

// mounts holds the mounts of a pod's containers by the names of their volumes, in order, so
// that a pod costs its volumes and its mounts, and not their product.
type mounts map[string][]mount

// mount is one mount, and its field with a dot behind it.
type mount struct {
	*v1.VolumeMount
	at string
}

func mountsOf(spec *v1.PodSpec) mounts {
	out := mounts{}
	for _, c := range containers(spec) {
		for j := range c.mounts {
			m := &c.mounts[j]
			out[m.Name] = append(out[m.Name], mount{m, fmt.Sprintf("%s.volumeMounts[%d].", c.path, j)})
		}
	}
	return out
}

// checkHostPath returns the problems of the path of the volume at an index: its own path, or the
// path that its claim is bound to. Nothing is made for a claim without a type.
func (r *rule) checkHostPath(spec *v1.PodSpec, i int, at *v1.HostPathVolumeSource, mounts mounts) []pod.Problem {
	v, claim := &spec.Volumes[i], spec.Volumes[i].PersistentVolumeClaim
	field, typed := "hostPath.path", "hostPath.type"
	if claim != nil {
		field, typed = "persistentVolumeClaim", "persistentVolumeClaim"
	}
	field, typed = fmt.Sprintf("spec.volumes[%d].%s", i, field), fmt.Sprintf("spec.volumes[%d].%s", i, typed)
	what := "host path " + quote(at.Path)
	under, why := r.root(at.Path)
	if under == nil {
		return []pod.Problem{r.refusal(field, what, why, allowed(prefixes(*r.hostPaths)))}
	}
	var problems []pod.Problem
	if under.readOnly && makes(at.Type) && (claim == nil || at.Type != nil && *at.Type != v1.HostPathUnset) {
		problems = append(problems, r.refusal(typed, "to create "+what, forReading(under), "write the path's type, such as Directory or File: without a type, a missing path is created"))
	}
	shown := r.readOnlyRoot(under, at.Path)
	switch {
	case shown == nil:
	case claim != nil && !claim.ReadOnly: // the group of its files would be changed
		problems = append(problems, r.refusal(field+".readOnly", "to write to "+what, forReading(shown), "write readOnly: true"))
	default:
		problems = append(problems, r.checkMounts(mounts[v.Name], v, what, shown)...)
	}
	return problems
}

// checkMounts returns the mounts of a volume by which containers would change the content of a
// read-only root.
func (r *rule) checkMounts(mounts []mount, v *v1.Volume, what string, shown *root) []pod.Problem {
	var problems []pod.Problem
	for _, m := range mounts {
		if !m.ReadOnly && v.PersistentVolumeClaim == nil { // a claim for reading only is mounted so
			problems = append(problems, r.refusal(m.at+"readOnly", "to write to "+what, forReading(shown), "write readOnly: true"))
		}
		part := "subPath"
		if m.SubPathExpr != "" {
			part = "subPathExpr"
		} else if m.SubPath == "" {
			continue
		}
		problems = append(problems, r.refusal(m.at+part, "a subPath of "+what, forReading(shown)+", and a missing subPath would be created", "write the whole path into hostPath.path"))
	}
	return problems
}

// makes reports whether a path that is missing is made: by the volume's type, or, where
// it has none, by the runtime.
func makes(t *v1.HostPathType) bool {
	return t == nil || *t == v1.HostPathUnset || *t == v1.HostPathDirectoryOrCreate || *t == v1.HostPathFileOrCreate
}

func forReading(r *root) string {
	return quote(r.prefix) + " and everything below it is read-only"
}

// readOnlyRoot returns the read-only root that a volume of an allowed path shows
// something of: the one above it, or else one below it.
func (r *rule) readOnlyRoot(under *root, hostPath string) *root {
	if under.readOnly {
		return under
	}
	clean := root{prefix: path.Clean(hostPath)}
	for i := range *r.hostPaths {
		if below := &(*r.hostPaths)[i]; below.readOnly && clean.holds(below.prefix) {
			return below
		}
	}
	return nil
}

// root returns the nearest of the rule's roots above a path; nil and the reason
// when there is none.
func (r *rule) root(hostPath string) (*root, string) {
	if !strings.HasPrefix(hostPath, "/") {
		return nil, "it is not absolute"
	}
	if slices.Contains(strings.Split(hostPath, "/"), "..") {
		return nil, "it contains .."
	}
	clean := path.Clean(hostPath)
	var nearest *root
	for i := range *r.hostPaths {
		if at := &(*r.hostPaths)[i]; at.holds(clean) && (nearest == nil || len(at.prefix) > len(nearest.prefix)) {
			nearest = at
		}
	}
	return nearest, "no prefix of hostPaths contains it"
}

func (r *rule) checkImages(spec *v1.PodSpec) []pod.Problem {
	if r.images == nil {
		return nil
	}
	var problems []pod.Problem
	judge := func(at, name string) {
		named, err := normalized(name)
		why := ""
		switch {
		case err != nil:
			why = err.Error()
		case slices.ContainsFunc(*r.images, func(i image) bool { return i.holds(named) }):
			return
		case named.String() == name:
			why = "no pattern of images matches"
		default:
			why = "no pattern of images matches " + quote(named.String())
		}
		problems = append(problems, r.refusal(at, "image "+quote(name), why, ""))
	}
	for i := range spec.Volumes {
		if v := spec.Volumes[i].Image; v != nil {
			judge(fmt.Sprintf("spec.volumes[%d].image.reference", i), v.Reference)
		}
	}
	for _, c := range containers(spec) {
		judge(c.path+".image", c.image)
	}
	return problems
}

// container has the checked fields of a container of any kind.
type container struct {
	path, image string
	mounts      []v1.VolumeMount
}

// containers returns all containers of a pod, in the order of the API's fields.
func containers(spec *v1.PodSpec) []container {
	var out []container
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		out = append(out, container{fmt.Sprintf("spec.initContainers[%d]", i), c.Image, c.VolumeMounts})
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		out = append(out, container{fmt.Sprintf("spec.containers[%d]", i), c.Image, c.VolumeMounts})
	}
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i]
		out = append(out, container{fmt.Sprintf("spec.ephemeralContainers[%d]", i), c.Image, c.VolumeMounts})
	}
	return out
}

func prefixes(roots []root) []string {
	var out []string
	for _, r := range roots {
		out = append(out, r.prefix)
	}
	return out
}

// allowed is the hint that lists the permitted values.
func allowed(list []string) string {
	if len(list) == 0 {
		return "the policy allows none"
	}
	return short("allowed: " + strings.Join(list, ", "))
}

// quote returns an author's text for messages: escaped, and shortened.
func quote(s string) string { return strconv.Quote(short(s)) }

// short truncates a long text.
func short(s string) string {
	const most = 200
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
