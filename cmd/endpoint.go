package cmd

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/server"
)

// endpoint is where a command reaches the agent: the socket below --root-dir, or
// another node's TLS port.
type endpoint struct {
	p                       *program
	server, token           string
	authority, cert, secret string
}

// endpointFlags names the flags of an endpoint.
func endpointFlags() []string {
	return []string{"server", "certificate-authority", "client-certificate", "client-key", "token-file"}
}

// addEndpoint adds the flags of an endpoint to a command.
func (p *program) addEndpoint(cmd *cobra.Command) *endpoint {
	r := &endpoint{p: p}
	f := cmd.Flags()
	f.StringVar(&r.server, "server", "", "use the agent of this node, such as https://node-7:10250")
	f.StringVar(&r.authority, "certificate-authority", "", "CA certificates for --server (default: the system's)")
	f.StringVar(&r.cert, "client-certificate", "", "client certificate for --server")
	f.StringVar(&r.secret, "client-key", "", "key of the client certificate")
	f.StringVar(&r.token, "token-file", "", "file with a bearer token for --server")
	for _, w := range [][2]string{{"server", "URL"}, {"certificate-authority", "FILE"}, {"client-certificate", "FILE"}, {"client-key", "FILE"}, {"token-file", "FILE"}} {
		word(f, w[0], w[1])
	}
	return r
}

// client returns a client of the agent, even if the agent does not run.
func (r *endpoint) client() (*client.Client, error) {
	if r.server == "" {
		for i, value := range []string{r.server, r.authority, r.cert, r.secret, r.token} {
			if value != "" {
				return nil, failed(exitUsage, errors.New("--"+endpointFlags()[i]+" needs --server"))
			}
		}
		return r.p.agent(), nil
	}
	c, err := client.New(client.Config{
		Server: r.server, CertificateAuthority: r.authority, ClientCertificate: r.cert, ClientKey: r.secret, TokenFile: r.token,
	})
	var path *os.PathError
	switch {
	case errors.As(err, &path):
		return nil, failed(exitFailure, err, readonly.AsRoot(err))
	case err != nil:
		return nil, failed(exitUsage, errors.New("--server "+r.server+": "+err.Error()))
	}
	return c, nil
}

// agent returns a client of the agent of --root-dir over its socket, even if the agent does
// not run.
func (p *program) agent() *client.Client {
	socket := p.cfg.SocketPath()
	c, err := client.New(client.Config{
		Socket: socket,
		Dial:   func(ctx context.Context) (net.Conn, error) { return server.Dial(ctx, socket) },
	})
	if err != nil {
		panic(err) // New validates only the TLS settings
	}
	return c
}

// clientError returns the error of a command for an error of the client, with a hint. nil stays nil.
func clientError(err error) error {
	var ended *exit
	absent, gone := errors.AsType[*client.AbsentError](err)
	refused, no := errors.AsType[*client.RefusedError](err)
	_, lost := errors.AsType[*client.LostError](err)
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.As(err, &ended):
		return err
	case gone && absent.Denied:
		return failed(exitFailure, err, "run this as root")
	case gone && absent.Local:
		return failed(exitFailure, err, "start one with 'nodectl serve'; --run-dir or --root-dir selects another one")
	case no:
		return failed(exitFailure, errors.New("the agent refused the request: "+cmp.Or(refused.Message, strings.Join(refused.Causes, "; "))))
	case lost:
		return failed(exitFailure, err, "the agent was killed, or this command took more than 30 s to read a line")
	}
	return failed(exitFailure, err)
}
