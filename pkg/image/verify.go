package image

import (
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// The kubelet's policies about images that are present: which of them a pod may use only with
// credentials that have pulled them (C-1.39.9).
const (
	// NeverVerify lets every pod use every present image.
	NeverVerify = "NeverVerify"
	// NeverVerifyPreloadedImages verifies images that the agent has pulled. It is the default.
	NeverVerifyPreloadedImages = "NeverVerifyPreloadedImages"
	// NeverVerifyAllowlistedImages verifies all images but those of Config.Allowlist.
	NeverVerifyAllowlistedImages = "NeverVerifyAllowlistedImages"
	// AlwaysVerify verifies all images.
	AlwaysVerify = "AlwaysVerify"
)

// exempt reports whether the policy lets every pod use the image n, whatever credentials pulled it.
func (c *Config) exempt(n name) bool {
	switch c.Verification {
	case NeverVerify:
		return true
	case NeverVerifyAllowlistedImages:
		return slices.ContainsFunc(c.Allowlist, func(pattern string) bool {
			prefix, wild := strings.CutSuffix(pattern, "*")
			return n.written == pattern || wild && strings.HasPrefix(n.written, prefix)
		})
	}
	return false
}

// exemptPreloaded reports whether the policy lets every pod use images that the agent has not
// pulled.
func (c *Config) exemptPreloaded() bool { return c.Verification == NeverVerifyPreloadedImages }

// withoutTag returns an image name as it is written, without tag and digest.
func withoutTag(image string, ref reference.Named) string {
	if d, ok := ref.(reference.Digested); ok {
		image = strings.TrimSuffix(image, "@"+d.Digest().String())
	}
	if t, ok := ref.(reference.Tagged); ok {
		image = strings.TrimSuffix(image, ":"+t.Tag())
	}
	return image
}
