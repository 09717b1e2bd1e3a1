package policy

import (
	"errors"
	"regexp"
	"strings"

	"github.com/distribution/reference"
)

// image is a pattern of images. Its parts are compared one by one, so that no *
// reaches from one into another.
type image struct {
	host, path string // path without the leading slash
	tag        string // "": any, unless digest says which
	digest     string // "": any, unless tag says which
}

// newImage reads a pattern, which is written as images are: without a registry
// it is one of docker.io, without a slash one of docker.io/library.
func newImage(pattern string) (image, error) {
	if pattern == "*" {
		return image{host: "*", path: "*"}, nil
	}
	var i image
	name, digest, hasDigest := strings.Cut(pattern, "@")
	host, rest, slash := strings.Cut(name, "/")
	if slash && (strings.ContainsAny(host, ".:*") || host == "localhost" || strings.ToLower(host) != host) {
		i.host = host
	} else {
		i.host, rest = "docker.io", name
	}
	if i.host == "index.docker.io" {
		i.host = "docker.io"
	}
	var hasTag bool
	i.path, i.tag, hasTag = strings.Cut(rest, ":")
	i.digest = digest
	if i.host == "docker.io" && !strings.Contains(i.path, "/") && !strings.HasPrefix(i.path, "*") {
		i.path = "library/" + i.path
	}
	switch {
	case badHost(i.host):
		return i, errors.New("in a registry name, * must be the whole name or its first label, such as *.example.com/*")
	case !slash && strings.Contains(i.path, "."):
		return i, errors.New("a name without a slash is an image in docker.io/library: for a whole registry write its name and /*")
	case i.host == "" || i.path == "" || hasTag && i.tag == "" || hasDigest && i.digest == "":
		return i, errors.New("a part of the name is empty")
	case strings.ContainsAny(i.tag, "/:") || strings.ContainsAny(i.digest, "/@"):
		return i, errors.New("not an image reference of the form registry/name:tag@digest")
	}
	_, err := reference.ParseNormalizedNamed(strings.ReplaceAll(i.host+"/"+i.path, "*", "a"))
	return i, err
}

// imageID is how runtimes take the ID of an image they have for its name.
var imageID = regexp.MustCompile(`^sha[0-9]+:`)

// normalized returns an image with its registry, and its tag or digest.
func normalized(name string) (reference.Named, error) {
	if imageID.MatchString(name) {
		return nil, errors.New("it is an image ID, which names no registry")
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, err
	}
	return reference.TagNameOnly(named), nil
}

// holds reports whether the pattern matches an image. Where an image has a tag and a
// digest, the digest is pulled: a pattern with only a tag does not match it.
func (i image) holds(of reference.Named) bool {
	var tag, digest string
	if t, ok := of.(reference.Tagged); ok {
		tag = t.Tag()
	}
	if d, ok := of.(reference.Digested); ok {
		digest = d.Digest().String()
	}
	if !hostHolds(i.host, reference.Domain(of)) || !glob(i.path, reference.Path(of)) {
		return false
	}
	switch {
	case i.tag == "" && i.digest == "":
		return true
	case i.digest == "":
		return digest == "" && glob(i.tag, tag)
	case digest == "" || !glob(i.digest, digest):
		return false
	}
	return i.tag == "" || tag != "" && glob(i.tag, tag)
}
