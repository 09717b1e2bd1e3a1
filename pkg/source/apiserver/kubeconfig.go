package apiserver

import "github.com/nodectl/nodectl/pkg/apiclient"

// access is a way in to the server, as the kubeconfig and the files it names
// described it when it was asked for.
type access struct {
	way  *apiclient.Way
	host string // scheme, host and port, for people
}

// enter returns the way in, brought up to date with the kubeconfig.
func (s *Source) enter() (access, error) {
	way, err := s.client.Way()
	if err != nil {
		return access{}, err
	}
	return access{way, way.Host()}, nil
}

// leave gives back the connections that nobody uses, unless they are others' too.
func (s *Source) leave() {
	if s.cfg.Client == nil {
		s.client.CloseIdleConnections()
	}
}
