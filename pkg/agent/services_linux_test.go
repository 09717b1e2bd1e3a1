package agent

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/balancer"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// TestAnswersOf_FailedSource_IsNotComplete: a source with a last good set, or that has ended, is
// complete.
func TestAnswersOf_FailedSource_IsNotComplete(t *testing.T) {
	t.Parallel()
	ready, failed := podconfig.LayerState{Ready: true}, podconfig.LayerState{Error: "no route to host"}
	for _, c := range []struct {
		layers []podconfig.LayerState
		want   balancer.Answers
	}{
		{nil, balancer.Complete},
		{[]podconfig.LayerState{ready, {Restored: true, Error: "x"}, {Ended: true}}, balancer.Complete},
		{[]podconfig.LayerState{ready, failed}, balancer.Partial},
		{[]podconfig.LayerState{failed, {}}, balancer.Waiting},
		{[]podconfig.LayerState{{}, failed}, balancer.Waiting},
	} {
		if got := answersOf(c.layers); got != c.want {
			t.Errorf("%+v: %d, want %d", c.layers, got, c.want)
		}
	}
}

// stored saves addresses of Services of these names below the root of an agent.
func stored(t *testing.T, a *Agent, names ...string) serviceStore {
	t.Helper()
	all := service.Allocations{}
	for i, name := range names {
		all[pod.Key{Namespace: "default", Name: name}] = service.Allocation{ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(20 + i)})}, Created: time.Unix(1, 0).UTC()}
	}
	s := serviceStore{record.NewServices(a.cfg.RootDir)}
	if err := s.Save(all); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestWithoutServices_PodsAreLeft_OtherServicesKeepTheirAddresses: only Services of the set lose
// theirs.
func TestWithoutServices_PodsAreLeft_OtherServicesKeepTheirAddresses(t *testing.T) {
	t.Parallel()
	a := joining(t, "refuse")
	a.state.records = record.New(a.cfg.RootDir)
	spec := &pod.Spec{Key: pod.Key{Namespace: "default", Name: "p"}, Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u1"}}}
	if err := a.state.records.Save(pod.Record{Key: spec.Key, UID: "u1", Want: spec}); err != nil {
		t.Fatal(err)
	}
	store := stored(t, a, "web", "db")
	web := &pod.Object{Kind: pod.KindService, Key: pod.Key{Namespace: "default", Name: "web"}, Object: &v1.Service{}}
	set := &podconfig.Merged{Objects: sorted.From([]*pod.Object{web}, func(x, y *pod.Object) int { return x.Key.Compare(y.Key) })}
	if err := a.removeServices(set); err != nil {
		t.Fatal(err)
	}
	left, err := store.Load()
	if _, there := left[pod.Key{Namespace: "default", Name: "db"}]; err != nil || !there || len(left) != 1 {
		t.Errorf("%v, %+v", err, left)
	}
}

// TestJoinWithoutServices_MachineJoins_RulesAreRemovedOnce: without Services or without a cluster,
// nothing is removed.
func TestJoinWithoutServices_MachineJoins_RulesAreRemovedOnce(t *testing.T) {
	t.Parallel()
	a := joining(t, "refuse")
	a.state.records = record.New(a.cfg.RootDir)
	calls := 0
	remove := func() error { calls++; return errors.New("another agent serves Services") }
	a.joinWithoutServices(remove)
	if calls != 0 {
		t.Error("without Services")
	}
	stored(t, a, "web")
	a.joinWithoutServices(remove)
	a.joinWithoutServices(remove)
	if calls != 2 {
		t.Errorf("a failure: %d calls, want 2", calls)
	}
	a.cfg.Kubeconfig = ""
	a.joinWithoutServices(remove)
	if calls != 2 {
		t.Error("without a cluster")
	}
}

// TestSaveDevices_Names_AreReadBackOnce: the same agent and the next one read each name once.
func TestSaveDevices_Names_AreReadBackOnce(t *testing.T) {
	t.Parallel()
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, names := range [][]string{{"veth1", "br0"}, nil, {"br0"}, {"a0"}} {
		if err := saveDevices(file, names); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := savedDevices(file); err != nil || !slices.Equal(got, []string{"a0", "br0", "veth1"}) {
		t.Errorf("%v, %q", err, got)
	}
}
