package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/test/tier"
)

// Each kind of workloads has this many stories, and each story this many events.
var stories = tier.Pick(40, 120)

const events = 20

// story is a world in which random events happen.
type story struct {
	*world
	rand *rand.Rand
	said []string
}

func newStory(w *world, seed uint64) *story {
	return &story{world: w, rand: rand.New(rand.NewPCG(seed, 7))}
}

func (s *story) say(format string, args ...any) {
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

// tell reports the events of a story that fails.
func (s *story) tell() {
	if s.t.Failed() {
		for i, line := range s.said {
			s.t.Logf("%2d %s", i+1, line)
		}
	}
}

// one returns the index of a pod for which the condition is true, -1 for none.
func (s *story) one(which func(Pod) bool) int {
	var found []int
	for i, p := range s.pods {
		if which(p) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return -1
	}
	return found[s.rand.IntN(len(found))]
}

// podEvent lets something happen to a pod, to the time or to the agent.
func (s *story) podEvent() {
	present := func(p Pod) bool { return !p.Leaving }
	i := s.one(present)
	chosen := func(p Pod) bool { return i >= 0 && p.Spec == s.pods[i].Spec }
	switch n := s.rand.IntN(12); {
	case n < 4:
		s.say("a pod becomes ready")
		s.set(v1.ConditionTrue, chosen)
	case n == 4:
		s.say("all pods become ready")
		s.set(v1.ConditionTrue, allPods)
	case n == 5:
		s.say("a pod is not ready")
		s.set(v1.ConditionFalse, chosen)
	case n == 6 && i >= 0:
		s.say("a pod fails")
		s.pods[i].Status = &v1.PodStatus{Phase: v1.PodFailed}
	case n == 7 && i >= 0:
		s.say("a pod vanishes")
		s.pods = slices.Delete(s.pods, i, i+1)
	case n == 8:
		if i := s.one(func(p Pod) bool { return p.Leaving }); i >= 0 {
			s.say("a pod that stops is gone")
			s.pods = slices.Delete(s.pods, i, i+1)
		}
	case n == 9:
		s.say("all pods that stop are gone")
		s.gone()
	case n == 10:
		s.say("the agent restarts")
		s.restart()
		s.rand.Shuffle(len(s.pods), func(i, j int) { s.pods[i], s.pods[j] = s.pods[j], s.pods[i] })
		if s.rand.IntN(2) == 0 {
			s.say("and it knows no status")
			for i := range s.pods {
				s.pods[i].Status = nil
			}
		}
	default:
		step := time.Duration(s.rand.IntN(8)) * time.Second
		s.say("%v pass", step)
		s.now = s.now.Add(step)
	}
}

// image changes the template to one of four, so that templates return.
func (s *story) image() string {
	image := fmt.Sprintf("web:%d", s.rand.IntN(4))
	s.say("the image is %s", image)
	return image
}

// converge lets the pods become ready, and pods that stop go, until nothing changes.
func (s *story) converge() {
	s.t.Helper()
	for range 60 {
		s.settle()
		s.now = s.now.Add(time.Minute)
		if d := s.next(); len(d.Steps) == 0 && len(s.stopping()) == 0 {
			return
		}
	}
	s.t.Fatalf("the pods do not settle: %s\n%s", s.show(), s.steps())
}

func amount(r *rand.Rand) *intstr.IntOrString {
	texts := []string{"0", "1", "2", "10%", "25%", "50%", "100%"}
	return webAmount(texts[r.IntN(len(texts))])
}

func (s *story) deploymentEvent() {
	editDeployment(s.world, func(d *appsv1.DeploymentSpec) {
		switch s.rand.IntN(7) {
		case 0, 1:
			d.Template.Spec.Containers[0].Image = s.image()
		case 2:
			n := int32(s.rand.IntN(7))
			s.say("replicas is %d", n)
			d.Replicas = &n
		case 3:
			d.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			s.say("the strategy is Recreate")
		case 4:
			d.Strategy = appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: amount(s.rand), MaxUnavailable: amount(s.rand)}}
			s.say("the strategy is %v, %v", d.Strategy.RollingUpdate.MaxSurge, d.Strategy.RollingUpdate.MaxUnavailable)
		case 5:
			d.Paused = !d.Paused
			s.say("paused is %v", d.Paused)
		default:
			d.MinReadySeconds = int32(s.rand.IntN(2) * 5)
			s.say("minReadySeconds is %d", d.MinReadySeconds)
		}
	})
}

// availableNow returns how many pods are available, and how many there are.
func (w *world) availableNow(minReady int32) (available, all int) {
	for _, p := range w.pods {
		if p.Leaving {
			continue
		}
		all++
		if yes, _ := p.isAvailable(minReady, w.now); yes {
			available++
		}
	}
	return available, all
}

// mayServe returns how many pods are available, with all pods of older revisions than that of the
// hash: a pod whose status is not known may be available.
func (w *world) mayServe(hash string, minReady int32) int {
	n := 0
	for _, p := range w.pods {
		if available, _ := p.isAvailable(minReady, w.now); !p.Leaving && (available || w.hashOf(p) != hash) {
			n++
		}
	}
	return n
}

// checkDeployment asks for a decision and checks the rules of every decision about a
// Deployment.
func (s *story) checkDeployment() {
	s.t.Helper()
	in := s.input()
	effective := in
	effective.Object, effective.State.Override, _ = in.State.Override.Apply(in.Object)
	d := newDeployment(&effective) // for its numbers
	replicas, most, least := int(d.replicas), int(d.replicas+d.surge), int(d.replicas-d.unavailable)
	rescaled := s.state.Deployment == nil || int(s.state.Deployment.Desired) != replicas
	before, _ := s.availableNow(d.spec.MinReadySeconds)
	count := int(total(d.sets))
	newest := ""
	if d.newest != nil {
		newest = d.newest.Hash
	}
	may := s.mayServe(newest, d.spec.MinReadySeconds)

	s.next()

	after, now := s.availableNow(d.spec.MinReadySeconds)
	if now > max(most, count) {
		s.t.Fatalf("there are %d pods, before %d; at most %d", now, count, most)
	}
	if d.rolling && !d.spec.Paused && !rescaled {
		if after < min(before, least) {
			s.t.Fatalf("%d pods are available, before %d; at least %d", after, before, least)
		}
		if now := s.mayServe(newest, d.spec.MinReadySeconds); now < min(may, least) {
			s.t.Fatalf("%d pods may be available, before %d; at least %d", now, may, least)
		}
	}
	s.checkPods()
	s.checkIdempotent()
}

// Pods, the time, the agent and the Deployment change at random. After each change: a rolling
// update leaves as many available pods as maxUnavailable requires, maxSurge limits the pods, a
// second decision changes nothing, and the state is read from JSON. In the end the pods are those
// of the newest template.
func TestStories_Deployment_RolloutsKeepTheirPromises(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stories) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newStory(newWorld(t, workloadOf(KindDeployment, webDeployment(3, "web:0", "", ""))), seed)
			defer s.tell()
			for range events {
				if s.rand.IntN(3) == 0 {
					s.deploymentEvent()
				} else {
					s.podEvent()
				}
				s.checkDeployment()
			}
			editDeployment(s.world, func(d *appsv1.DeploymentSpec) { d.Paused = false })
			s.converge()
			spec := s.object.Object.(*appsv1.Deployment).Spec
			status := s.last.Status.(*appsv1.DeploymentStatus)
			if n := *spec.Replicas; status.Replicas != n || status.UpdatedReplicas != n || status.AvailableReplicas != n || int(n) != len(s.pods) {
				t.Fatalf("in the end the status is %s, want %d replicas; pods %s", asJSON(t, status), n, s.show())
			}
			equal(t, "the condition", s.progressing(), "True NewReplicaSetAvailable")
			for _, p := range s.pods {
				equal(t, "the image", p.Spec.Pod.Spec.Containers[0].Image, spec.Template.Spec.Containers[0].Image)
			}
		})
	}
}

func (s *story) daemonSetEvent() {
	edit(s.world, func(d *appsv1.DaemonSet) {
		switch s.rand.IntN(4) {
		case 0, 1:
			d.Spec.Template.Spec.Containers[0].Image = s.image()
		case 2:
			d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
			s.say("the strategy is OnDelete")
		default:
			surge := intstr.FromInt32(int32(s.rand.IntN(2)))
			d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &surge}}
			s.say("maxSurge is %s", surge.String())
		}
	})
}

func TestStories_DaemonSet_OnePodRunsHere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stories) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newStory(newWorld(t, workloadOf(KindDaemonSet, webDaemonSet("", ""))), seed)
			defer s.tell()
			for range events {
				if s.rand.IntN(4) == 0 {
					s.daemonSetEvent()
				} else {
					s.podEvent()
				}
				in := s.input()
				surges := newDaemonSet(&in).surges()
				before, _ := s.availableNow(0)
				s.next()
				after, count := s.availableNow(0)
				if surges && before > 0 && after == 0 {
					t.Fatal("with maxSurge the available pod was removed")
				}
				if count > 2 || !surges && count > 1 {
					t.Fatalf("there are %d pods", count)
				}
				s.checkPods()
				s.checkIdempotent()
			}
			edit(s.world, func(d *appsv1.DaemonSet) { d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{} })
			s.converge()
			want := s.object.Object.(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Image
			if len(s.pods) != 1 || s.pods[0].Spec.Pod.Spec.Containers[0].Image != want {
				t.Fatalf("in the end the pods are %s, want one with %s", s.show(), want)
			}
		})
	}
}

func TestStories_ReplicaSet_NumberOfPodsIsThatOfReplicas(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stories) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newStory(newWorld(t, workloadOf(KindReplicaSet, webReplicaSet(3))), seed)
			defer s.tell()
			for range events {
				if s.rand.IntN(4) == 0 {
					n := int32(s.rand.IntN(7))
					s.say("replicas is %d", n)
					edit(s.world, func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas = &n })
				} else {
					s.podEvent()
				}
				before, _ := s.availableNow(0)
				s.next()
				after, count := s.availableNow(0)
				want := int(*s.object.Object.(*appsv1.ReplicaSet).Spec.Replicas)
				if count != want || after < min(before, want) {
					t.Fatalf("there are %d pods, want %d; %d are ready, before %d", count, want, after, before)
				}
				s.checkPods()
				s.checkIdempotent()
			}
		})
	}
}
