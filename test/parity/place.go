package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
)

// newPlace makes an agent's place on a node.
func newPlace(ctx context.Context, l *arm.Lab, name, endpoint string) (p place, err error) {
	p.node = l.Node
	if p.Place, err = l.NewPlace(filepath.Join("turn", name)); err != nil {
		return p, err
	}
	p.NodeName, p.Endpoint = nodeName, endpoint
	profiles := filepath.Join(p.Root, "seccomp/parity")
	return p, errors.Join(
		os.Chmod(p.Manifests, 0o700), os.MkdirAll(p.Root, 0o700), os.MkdirAll(profiles, 0o700),
		os.WriteFile(filepath.Join(profiles, "allow.json"), []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600),
		arm.MakeCgroup(p.Cgroup), // a kubelet needs it to exist; nodectl gets the same
		importAll(ctx, l.Node))
}

// importAll imports the examples' images too: one case needs a second image.
func importAll(ctx context.Context, n *node.Node) error {
	images, err := node.Images()
	for _, a := range images {
		if a.Ref != node.Stamp && err == nil {
			_, err = bundle.ImportFile(ctx, n.Endpoint, a.File)
		}
	}
	return err
}

// paths are the names of this place, for a comparison with another place.
func (p *place) paths() map[string]string {
	return map[string]string{
		filepath.Join(p.Dir, "cases"): "$CASES", p.Manifests: "$MANIFESTS", p.Root: "$ROOT", p.Logs: "$LOGS", p.Cgroup: "$CGROUP",
		p.node.RunDir: "$RUN", p.node.RootDir: "$RUNTIME", strings.TrimSuffix(p.node.Subnet, "0/24"): "$SUBNET.",
	}
}
