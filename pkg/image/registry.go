package image

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodectl/nodectl/pkg/reclaim"
)

const (
	// answerLimit is how long a registry may take to answer.
	answerLimit = 5 * time.Second
	// A collection asks so many registries at a time, and all of them within askLimit.
	askedAtOnce = 8
	askLimit    = time.Minute
	// silentFor is how long a registry that has not answered is not asked again.
	silentFor = time.Hour
)

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

// unasked returns the registries of unused images, without those that were silent within
// silentFor, and the collection that is planned if all registries answer.
func (v *Inventory) unasked(ctx context.Context) (hosts map[string]bool, plan reclaim.ImagePlan, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, plan, err := v.plan(ctx, nil)
	maps.DeleteFunc(v.silent, func(_ string, at time.Time) bool { return time.Since(at) >= silentFor })
	hosts = map[string]bool{}
	for _, i := range n.Images {
		for _, host := range registriesOf(i.Names) {
			if _, silent := v.silent[host]; !silent && len(i.Users) == 0 {
				hosts[host] = true
			}
		}
	}
	return hosts, plan, err
}

// ask reports of registries whether they answer. It asks in no order, so that many that hang do
// not always come before another one, and leaves out those that it could not ask within askLimit.
func (v *Inventory) ask(ctx context.Context, hosts map[string]bool) map[string]bool {
	ctx, stop := context.WithTimeout(ctx, askLimit)
	defer stop()
	answered := map[string]bool{}
	var mu sync.Mutex // guards answered
	var all errgroup.Group
	all.SetLimit(askedAtOnce)
	for host := range hosts {
		all.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			is := v.cfg.Answers(ctx, host)
			mu.Lock()
			defer mu.Unlock()
			if is || ctx.Err() == nil {
				answered[host] = is
			}
			return nil
		})
	}
	_ = all.Wait()
	return answered
}
