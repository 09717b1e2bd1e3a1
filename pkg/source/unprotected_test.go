package source_test

import (
	"net/url"
	"testing"

	"github.com/nodectl/nodectl/pkg/source"
)

// Others can change content that comes unencrypted from another host. A name that only looks like
// this host counts as another host.
//
// Shows: D1
func TestUnprotected_HTTPOfAnotherHost_Is(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"https://h/a": false, "http://127.0.0.1:80/a": false, "http://127.9.9.9/": false, "http://[::1]:2379": false, "http://localhost/": false,
		"http://h/a": true, "http://10.0.0.1/": true, "http://[fe80::1]/": true, "http://localhost.example/": true, "http://127.0.0.1.example/": true,
		"http://127.0.0.1@h/": true, "http://0.0.0.0/": true,
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := source.IsUnprotected(u); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}
