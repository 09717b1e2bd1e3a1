package e2e

import (
	"context"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
