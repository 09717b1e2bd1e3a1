package image

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodectl/nodectl/pkg/reclaim"
)

const (
	// answerLimit is how long a registry may take to answer one request.
	answerLimit = 5 * time.Second
	// askedAtOnce is how many registries a collection asks at the same time.
	askedAtOnce = 8
	// askLimit is how long a collection may take to ask all registries.
	askLimit = time.Minute
	// unresponsiveFor is how long a registry that did not answer counts as unresponsive without a
	// new request.
	unresponsiveFor = time.Hour
)

// RegistryAnswers reports whether one of a registry's mirrors, which are URLs, or the registry
// itself answers: over HTTPS, with any certificate, or over HTTP. A status of 500 or more is no
// answer. The requests have no credentials and follow no redirect.
func RegistryAnswers(ctx context.Context, registry string, mirrors ...string) bool {
	for _, m := range mirrors {
		if answersAt(ctx, strings.TrimSuffix(m, "/")+"/v2/") {
			return true
		}
	}
	if registry == "docker.io" {
		registry = "registry-1.docker.io"
	}
	return answersAt(ctx, "https://"+registry+"/v2/", "http://"+registry+"/v2/")
}

// answersAt reports whether a registry answers at the first of the URLs where there is a server.
func answersAt(ctx context.Context, urls ...string) bool {
	web := &http.Client{
		Timeout:       answerLimit,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for _, url := range urls {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		answer, err := web.Do(r)
		if err == nil {
			_ = answer.Body.Close()
			return answer.StatusCode < http.StatusInternalServerError
		}
		if _, unknown := errors.AsType[*tls.CertificateVerificationError](err); unknown {
			return true // the runtime may trust other authorities
		}
	}
	return false
}

// registriesToAsk returns the registries of unused images, without those that count as silent
// already, and the plan of a collection for the case that all registries answer.
func (v *Inventory) registriesToAsk(ctx context.Context) (hosts map[string]bool, plan reclaim.ImagePlan, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, plan, err := v.plan(ctx, nil)
	return v.registriesOfUnused(n.Images), plan, err
}

// registriesOfUnused returns the registries of unused images, without those that count as silent
// already. The caller holds the lock.
func (v *Inventory) registriesOfUnused(images []reclaim.Image) map[string]bool {
	maps.DeleteFunc(v.unresponsive, func(_ string, at time.Time) bool { return time.Since(at) >= unresponsiveFor })
	hosts := map[string]bool{}
	for _, i := range images {
		for _, host := range registriesOf(i.Names) {
			if _, silent := v.unresponsive[host]; !silent && len(i.Users) == 0 {
				hosts[host] = true
			}
		}
	}
	return hosts
}

// recordUnresponsive remembers the registries that did not answer. The caller holds the lock.
func (v *Inventory) recordUnresponsive(answered map[string]bool) {
	for host, is := range answered {
		if !is {
			v.unresponsive[host] = time.Now()
		}
	}
}

// markUnresponsive names the registry of each image that comes from one without true in answered.
func markUnresponsive(images []reclaim.Image, answered map[string]bool) {
	for i := range images {
		for _, host := range registriesOf(images[i].Names) {
			if !answered[host] {
				images[i].UnresponsiveRegistry = host
			}
		}
	}
}

// ask returns for each registry whether it answers. It leaves out those that have not answered when
// limit is over. The order is random: with many registries that hang, each collection may leave
// out others.
func (v *Inventory) ask(ctx context.Context, hosts map[string]bool, limit time.Duration) map[string]bool {
	ctx, stop := context.WithTimeout(ctx, limit)
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
			is := v.cfg.RegistryAnswers(ctx, host)
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
