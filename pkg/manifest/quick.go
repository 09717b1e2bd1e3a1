package manifest

import (
	"bytes"

	v1 "k8s.io/api/core/v1"
	sigsjson "sigs.k8s.io/json"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// quickPod reads a chunk of JSON that is one valid static pod, without the places of its values. For any
// other chunk it returns false and changes nothing: the reader then decodes the chunk with all places, to
// report problems. Both ways return the same pod.
func (r *reader) quickPod(c chunk) bool {
	const most = 1 << 18 // larger JSON is probably a list of pods
	js := bytes.TrimLeft(c.text, " \t\r\n")
	if !r.o.Static || len(c.text) > most || !bytes.HasPrefix(js, []byte("{")) || !bytes.Contains(js, []byte(`"Pod"`)) || mayBeSlow(js) {
		return false
	}
	var p v1.Pod
	if strict, err := sigsjson.UnmarshalStrict(js, &p); err != nil || len(strict) > 0 || p.Kind != "Pod" || p.APIVersion != "v1" || p.Name == "" {
		return false
	}
	line, _ := c.lineOf(len(c.text) - len(js))
	o := object{kind: "Pod", at: &place{line: line}}
	s := &pod.Spec{Key: r.keyOf(p.Namespace, p.Name), Origin: r.origin(o), Pod: &p}
	if _, twice := r.seen[o.id(s.Key)]; twice || len(podspec.Unsupported(&p))+len(podspec.Ignored(&p))+len(pod.Refs(&p)) > 0 || len(r.identityProblems(&p)) > 0 {
		return false
	}
	podspec.Fingerprint(s, s.Pod)
	key := s.Key
	r.makeStatic(s)
	if len(validatePod(&p)) > 0 {
		return false
	}
	r.seen[o.id(key)] = line
	r.out.Pods = append(r.out.Pods, s)
	return true
}
