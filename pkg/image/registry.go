package image

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

// answerLimit is how long a registry may take to answer.
const answerLimit = 5 * time.Second

// answers reports whether a registry answers at all: by HTTPS, whatever its certificate, or
// by HTTP, with any status that is not an error of the server. It sends no credentials and
// does not follow redirects.
func answers(ctx context.Context, registry string) bool {
	if registry == "docker.io" {
		registry = "registry-1.docker.io"
	}
	web := &http.Client{
		Timeout:       answerLimit,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for _, scheme := range []string{"https", "http"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+registry+"/v2/", nil)
		if err != nil {
			return false
		}
		answer, err := web.Do(r)
		if err == nil {
			_ = answer.Body.Close()
			return answer.StatusCode < http.StatusInternalServerError
		}
		if _, unknown := errors.AsType[*tls.CertificateVerificationError](err); unknown {
			return true // the runtime may know its authority
		}
	}
	return false
}
