// Command disk is the CSI driver of the tests, and the registrar beside it. A volume is a
// directory below --data-dir, which the driver mounts. It checks the order of the calls that it
// gets, and appends each one to the file "calls" below --data-dir:
//
//	disk driver --driver-name NAME --endpoint SOCKET --data-dir DIR --node-id ID
//	disk registrar --csi-address SOCKET --kubelet-registration-path SOCKET --plugin-registration-path DIR
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "disk:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want driver or registrar")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "driver":
		d := &driver{}
		endpoint := flags.String("endpoint", "/csi/csi.sock", "socket of the driver")
		flags.StringVar(&d.name, "driver-name", "disk.csi.nodectl.dev", "name of the driver")
		flags.StringVar(&d.dir, "data-dir", "/csi-data", "directory of the volumes")
		flags.StringVar(&d.node, "node-id", "", "name of this node")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return d.serve(ctx, *endpoint)
	case "registrar":
		r := &registrar{failed: make(chan error, 1)}
		address := flags.String("csi-address", "/csi/csi.sock", "socket of the driver")
		flags.StringVar(&r.endpoint, "kubelet-registration-path", "", "socket of the driver, as the node sees it")
		dir := flags.String("plugin-registration-path", "/registration", "directory of the registration sockets")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return r.serve(ctx, *address, *dir)
	}
	return fmt.Errorf("%q is no command", args[0])
}

// serve serves the three services of the driver until ctx ends.
func (d *driver) serve(ctx context.Context, socket string) error {
	if d.node == "" {
		return errors.New("--node-id is missing")
	}
	if err := os.MkdirAll(filepath.Join(d.dir, "volumes"), 0o750); err != nil {
		return err
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(d.logged))
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
	return serveOn(ctx, s, socket)
}

// serveOn serves on a socket, and replaces one that an earlier process has left.
func serveOn(ctx context.Context, s *grpc.Server, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, s.Stop)()
	if err := s.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// registrar registers a driver with the kubelet of the node.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
	failed         chan error
}

// serve waits for the driver, and serves the registration until ctx ends or the node refuses it.
func (r *registrar) serve(ctx context.Context, address, dir string) error {
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	is, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	r.name = is.GetName()
	socket := filepath.Join(dir, r.name+"-reg.sock")
	defer func() { _ = os.Remove(socket) }()
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, r)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- serveOn(ctx, s, socket) }()
	select {
	case err := <-ended:
		return err
	case err := <-r.failed:
		stop()
		return errors.Join(err, <-ended)
	}
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, q *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !q.GetPluginRegistered() {
		select {
		case r.failed <- fmt.Errorf("the node refuses the driver: %s", q.GetError()):
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}
