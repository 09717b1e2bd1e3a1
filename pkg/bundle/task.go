package bundle

import (
	"context"
	"fmt"
	"syscall"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// EndTask kills and deletes the containerd task of a CRI container, whatever state CRI
// reports; the container stays. A missing task is no error. It fails if the runtime is not
// containerd.
func EndTask(ctx context.Context, endpoint, id string) error {
	c, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	api := tasks.NewTasksClient(c)
	_, err = api.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGKILL), All: true})
	if err == nil {
		_, err = api.Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	}
	if err == nil || status.Code(err) == codes.NotFound { // the task of an ended process stays
		_, err = api.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	}
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("end the task of container %s: %w", id, err)
	}
	return nil
}
