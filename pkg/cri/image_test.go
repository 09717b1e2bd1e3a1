package cri_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Registries repeat parts of a request, and runtimes repeat registries.
//
// Shows: I8
func TestFetchImage_Fails_ErrorHasNoCredentials(t *testing.T) {
	const user, password = "user", "c4n/ry+p ss"
	pair := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	for text, want := range map[string]string{
		"GET https://user:c4n%2Fry@r.io/v2/: 401":                            "GET https://***@r.io/v2/: 401",
		"no entry for " + password + ", go away":                             "no entry for ***, go away",
		"no entry for c4n%2Fry%2Bp+ss":                                       "no entry for ***",
		"no entry for Basic " + pair:                                         "no entry for Basic ***",
		"no entry for Bearer eyJhbGciOiJIUzI1NiJ9.e30.c4nary_-":              "no entry for Bearer ***",
		"token eyJhbGciOiJIUzI1NiJ9.e30.c4nary is stale":                     "token *** is stale",
		`{"access_token":"c4nary","x":1}`:                                    `{"access_token":***","x":1}`,
		"GET https://r.io/a?X-Amz-Signature=c4nary&X-Amz-Date=1&ok=1: 403":   "GET https://r.io/a?X-Amz-Signature=***&X-Amz-Date=***&ok=1: 403",
		"GET https://r.io/t?scope=repository%3Aa%3Apull&service=r: 401":      "GET https://r.io/t?scope=repository%3Aa%3Apull&service=r: 401",
		"cannot fetch anonymous token: unexpected status: 401":               "cannot fetch anonymous token: unexpected status: 401",
		"authorization failed: no basic auth credentials":                    "authorization failed: no basic auth credentials",
		"unauthorized: incorrect username or password: see https://r.io/x@y": "unauthorized: incorrect username or password: see https://r.io/x@y",
	} {
		for _, code := range []codes.Code{codes.Unknown, codes.Unavailable, codes.Canceled} {
			rt := critest.New()
			rt.Fault(critest.Fault{Method: "PullImage", Err: status.Error(code, text)})
			_, err := rt.CRI(cri.Config{Node: "n1"}).FetchImage(t.Context(), wanted("web", "remote"), "r.io/remote:1", user, password)
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s %q: %v", code, text, err)
			}
			if start := (*pod.StartError)(nil); errors.As(err, &start) != (code == codes.Unknown) {
				t.Errorf("%s: %#v", code, err)
			}
		}
	}
}
