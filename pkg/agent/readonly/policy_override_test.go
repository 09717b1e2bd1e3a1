package readonly

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/workload"
)

// stored is a store of states, each of the layer file:/m.
type stored map[pod.ObjectKey]string

func (s stored) Load(each func(pod.ObjectKey, string, []byte)) error {
	for of, state := range s {
		each(of, "file:/m", []byte(state))
	}
	return nil
}

func (s stored) Save(of pod.ObjectKey, _ string, state []byte) error {
	s[of] = string(state)
	return nil
}

func (s stored) Remove(of pod.ObjectKey) error {
	delete(s, of)
	return nil
}

// A privileged template of before the policy returns neither by an override of an earlier agent, nor
// by `rollout undo`.
//
// Shows: D1
func TestForbidsWorkload_EarlierPrivilegedTemplate_IsNotRestored(t *testing.T) {
	t.Parallel()
	r, _ := judging(t, restricted)
	good, bad := deployed(t, pod.KindDeployment, ""), deployed(t, pod.KindDeployment, "privileged: true")
	if why := r.ForbidsWorkload(bad); !strings.Contains(why, "privileged") {
		t.Errorf("the policy says %q", why)
	}
	if why := (Rules{}).ForbidsWorkload(bad); why != "" {
		t.Errorf("without a policy: %q", why)
	}
	template, _ := bad.Template()
	own, _ := good.Template()
	before := workload.Next(workload.Input{Object: bad, Node: "n1"}).State
	before.Revisions[0].Replicas = 0 // all its pods were replaced
	overridden := before
	overridden.Override = &workload.Override{Template: &workload.TemplateOverride{Template: *template, Source: *own, Why: "rollout undo"}}
	for name, state := range map[string]workload.State{"by an override": overridden, "by a command": before} {
		text, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		c := controller.New(controller.Config{Node: "n1", Store: stored{good.ObjectKey(): string(text)}, Judge: r.ForbidsWorkload})
		check := func() {
			pods, _ := c.Expand([]*pod.Object{good})
			for _, s := range pods {
				if isPrivileged(s.Pod) {
					t.Errorf("%s: %s is privileged", name, s.Name)
				}
			}
			if len(pods) == 0 {
				t.Errorf("%s: no pods", name)
			}
		}
		check()
		done := make(chan error, 1) // the goroutine sends once
		go func() {
			_, err := c.Do(t.Context(), good.ObjectKey(), workload.Command{Verb: workload.Undo, Revision: 1})
			done <- err
		}()
		var refused *controller.RefusedError
		for err, ended := error(nil), false; !ended; {
			check()
			select {
			case err = <-done:
				ended = true
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), "the source policy forbids the result") {
					t.Errorf("%s: %v", name, err)
				}
			default:
			}
		}
		check()
	}
}

func isPrivileged(p *v1.Pod) bool {
	s := p.Spec.Containers[0].SecurityContext
	return s != nil && s.Privileged != nil && *s.Privileged
}
