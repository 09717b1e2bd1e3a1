package config

import (
	"fmt"
	"strings"
)

// The verification policies of images that this package uses.
const (
	// VerifyPreloaded is the default: only images that the agent has pulled are verified.
	VerifyPreloaded = "NeverVerifyPreloadedImages"
	// verifyListed is the only policy that uses the allowlist.
	verifyListed = "NeverVerifyAllowlistedImages"
)

// Allowlist returns ImageVerificationAllowlist with one name per item.
func (c Config) Allowlist() []string { return items(c.ImageVerificationAllowlist) }

// allowlist checks the image names of an allowlist as the kubelet does.
func allowlist(policy string, list []string) string {
	if len(list) > 0 && policy != verifyListed {
		return fmt.Sprintf("only image-pull-credentials-verification-policy %s uses it (got %s)", verifyListed, policy)
	}
	for _, pattern := range list {
		image, _ := strings.CutSuffix(pattern, "/*")
		_, last, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":") // a port may precede a slash
		switch {
		case image == "":
			return fmt.Sprintf("%q names no registry", pattern)
		case strings.ContainsAny(image, "* "):
			return fmt.Sprintf("%q is not an image name, or the beginning of one that ends in /*", pattern)
		case strings.Contains(image, "@") || last != "" && image == pattern:
			return fmt.Sprintf("%q must have no tag and no digest", pattern)
		}
	}
	return ""
}
