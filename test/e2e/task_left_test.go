package e2e

import (
	"context"
	"sync"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/criproxy"
)

// TestF1_TaskOfAContainerThatNeverStarted: an agent that is killed while it starts a
// container may leave one that containerd lists as exited, but whose task it keeps, so that
// it refuses to remove it. The pod still continues, and when it is removed nothing is left of
// it.
func TestF1_TaskOfAContainerThatNeverStarted(t *testing.T) {
	s := parallelStage(t)
	var first sync.Once
	s.through(criproxy.Hooks{Before: func(c criproxy.Call) {
		if c.Method == "StartContainer" {
			first.Do(func() {
				// This is what an interrupted start leaves: the next one fails on it.
				if err := s.leaveTask(c.Request.Materialize()); err != nil {
					s.Error(err)
				}
			})
		}
	}})
	s.write("web.yaml", simple("web"))
	s.serve()
	s.awaitRunning("web", "main")
	if st := s.status("web").Status; containerStatus(st, "main").LastTerminationState.Terminated == nil {
		t.Errorf("the first start did not fail: %s", describe(st))
	}
	s.remove("web.yaml")
	s.awaitGone("web")
	s.nothingLeft()
	if err := bundle.EndTask(t.Context(), s.node.Endpoint, "nothing"); err != nil {
		t.Errorf("of a container that is not there: %v", err)
	}
}

// leaveTask makes a task of the container that a StartContainerRequest names, and does not
// start its init process.
func (s *stage) leaveTask(start []byte) error {
	var q cri.StartContainerRequest
	if err := proto.Unmarshal(start, &q); err != nil {
		return err
	}
	id := q.ContainerId
	conn, err := grpc.NewClient(s.node.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "containerd-namespace", "k8s.io")
	c, err := containers.NewContainersClient(conn).Get(ctx, &containers.GetContainerRequest{ID: id})
	if err != nil {
		return err
	}
	root, err := snapshots.NewSnapshotsClient(conn).Mounts(ctx, &snapshots.MountsRequest{Snapshotter: c.Container.Snapshotter, Key: c.Container.SnapshotKey})
	if err != nil {
		return err
	}
	_, err = tasks.NewTasksClient(conn).Create(ctx, &tasks.CreateTaskRequest{ContainerID: id, Rootfs: root.Mounts})
	return err
}
