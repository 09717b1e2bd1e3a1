package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/cluster"
)

// A server is an API server with an etcd, for manifests that a kubelet rejects from a file.
type server struct{ admin *rest.RESTClient }

// startServer starts a server, which ends with t, and returns the node's kubeconfig.
func startServer(t testing.TB) (*server, string) {
	c := cluster.Start(t, cluster.APIs("storage.k8s.io/v1", "resource.k8s.io/v1"))
	return &server{admin: c.Client(t)}, c.NodeKubeconfig(t, nodeName)
}

// patience is how long a pod that is being deleted may keep its name.
const patience = time.Minute

// put creates an object, or updates it to the manifest. A pod is bound to the node, and has
// the name that a pod from a file has. said is the server's reason for a rejection.
func (s *server) put(manifest string) (said []string, err error) {
	path, name, body, err := object(manifest)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := s.admin.Post().AbsPath(path).Body(body).Do(ctx).Error()
		if apierrors.IsAlreadyExists(err) && filepath.Base(path) != "pods" {
			err = s.admin.Put().AbsPath(path, name).Body(body).Do(ctx).Error()
		}
		switch {
		case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
			return []string{err.Error()}, nil
		case !apierrors.IsAlreadyExists(err):
			return nil, err
		}
		if err := arm.Pause(ctx, time.Second); err != nil {
			return nil, fmt.Errorf("%s is still there: %w", name, err)
		}
	}
}

// remove deletes an object; a pod goes when its node has stopped it.
func (s *server) remove(manifest string) error {
	path, name, _, err := object(manifest)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err = s.admin.Delete().AbsPath(path, name).Do(ctx).Error(); apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// object returns where a manifest's object belongs in the API, and its JSON.
func object(manifest string) (path, name string, body []byte, err error) {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(manifest), &tree); err != nil {
		return "", "", nil, err
	}
	kind, name, err := identify(manifest)
	if err != nil {
		return "", "", nil, err
	}
	tree["kind"] = kind
	if kind == "Pod" {
		name += "-" + nodeName
		spec, _ := tree["spec"].(map[string]any)
		if meta, ok := tree["metadata"].(map[string]any); ok && spec != nil {
			meta["name"], spec["nodeName"] = name, nodeName
			spec["automountServiceAccountToken"] = false
		}
	}
	if tree["apiVersion"] == nil {
		tree["apiVersion"] = "v1"
	}
	path = "/api/v1/namespaces/default/" + strings.ToLower(kind) + "s"
	body, err = json.Marshal(tree)
	return path, name, body, err
}
