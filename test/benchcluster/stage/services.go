package stage

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/nodectl/nodectl/test/suite"
)

// KubeProxy starts kube-proxy for a node, with more arguments. It ends with the stage.
func (s *Stage) KubeProxy(node string, more ...string) error {
	return suite.Try(func() { s.Cluster.KubeProxy(s.tb, node, more...) })
}

// Kubectl runs kubectl as the administrator, with a text as its input.
func (s *Stage) Kubectl(ctx context.Context, input string, args ...string) error {
	var cmd *exec.Cmd
	if err := suite.Try(func() { cmd = s.Cluster.Kubectl(s.tb, args...) }); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", args[0], err, out.String())
	}
	return nil
}

// Apps returns a client of Deployments, as the administrator.
func (s *Stage) Apps() (client *rest.RESTClient, err error) {
	var config *rest.Config
	if err := suite.Try(func() { config = s.Cluster.Config(s.tb, s.Cluster.AdminKubeconfig(s.tb)) }); err != nil {
		return nil, err
	}
	config.APIPath, config.GroupVersion = "/apis", &appsv1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return rest.RESTClientFor(config)
}
