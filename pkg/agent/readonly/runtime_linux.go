package readonly

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
)

// KindBundled is the name of the bundled runtime in bundle.DiscoveredRuntime.
const KindBundled = "bundled"

// Discover finds the runtime to use. A running bundled runtime stays in use, even if another
// runtime was installed since: the pods run on it.
func (c Config) Discover(ctx context.Context) (bundle.DiscoveredRuntime, error) {
	if b := bundle.New(c.Bundle()); c.RuntimeEndpoint == "" && b.Running() {
		return bundle.DiscoveredRuntime{Endpoint: b.Endpoint(), Kind: KindBundled}, nil
	}
	return bundle.Discover(ctx, c.RuntimeEndpoint)
}

// observe is Connect with read access.
func (c Config) observe(ctx context.Context) (machine, error) {
	r, err := c.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Connect connects to the runtime that serve would use. It starts nothing. If no runtime answers,
// the error names the endpoints that it tried.
func (c Config) Connect(ctx context.Context) (*cri.Runtime, error) {
	found, err := c.Discover(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	endpoint := found.Endpoint
	if endpoint == "" { // use the bundled one, if an agent has started it
		endpoint = bundle.New(c.Bundle()).Endpoint()
	}
	r, dialled := cri.Dial(c.CRI(endpoint))
	if dialled != nil {
		return nil, dialled
	}
	ask, cancel := context.WithTimeout(ctx, c.RuntimeTimeout)
	defer cancel()
	_, silent := r.Ready(ask)
	switch {
	case silent == nil:
		return r, nil
	case err == nil && found.Kind == "explicit":
		err = silent
	case err == nil:
		err = &bundle.NoRuntimeError{Tried: append(found.Tried, "bundled runtime: not running")}
	}
	_ = r.Close()
	return nil, err
}

// Bundle returns the configuration of the bundled runtime.
func (c Config) Bundle() bundle.Config {
	return bundle.Config{RootDir: c.RootDir, Subnet: c.PodCIDR, Log: c.RuntimeLog}
}

// CRI returns the configuration of a client of the runtime at endpoint.
func (c Config) CRI(endpoint string) cri.Config {
	return cri.Config{
		Endpoint: endpoint, ImageEndpoint: c.ImageServiceEndpoint, Node: c.NodeName, PodLogsDir: c.PodLogsDir,
		Timeouts:         cri.Timeouts{Call: c.RuntimeRequestTimeout, Read: min(c.RuntimeRequestTimeout, cri.DefaultRead)},
		ContainerLogsDir: c.LogLinks(), RootDir: c.RootDir,
		CgroupParent: strings.TrimSuffix(c.CgroupRoot, "/"), Log: c.RuntimeLog,
		EndTask:        func(ctx context.Context, id string) error { return bundle.EndTask(ctx, endpoint, id) },
		RuntimeClasses: c.Classes(), SeccompDir: filepath.Join(c.RootDir, "seccomp"), PauseProfile: c.pauseProfile(endpoint),
		OneDisk:    c.Disabled().Has(pod.FeatureSeparateDisk),
		ClusterDNS: c.ClusterDNS, ClusterDomain: c.PodDomain(), ResolvConf: &c.ResolvConf,
	}
}

// pauseProfile returns the function that makes the seccomp profile of sandboxes at endpoint.
// It is nil for any runtime but the bundled one: CRI does not report the pause image.
func (c Config) pauseProfile(endpoint string) func() (string, error) {
	if b := bundle.New(c.Bundle()); b.Endpoint() == endpoint {
		return b.PauseProfile
	}
	return nil
}
