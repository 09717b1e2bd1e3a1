package image

import (
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// index finds images by the names that pods and runtimes use.
type index struct {
	images []*reclaim.Image
	byName map[string]*reclaim.Image // by ID, and by full tag and digest
}

func newIndex(images []pod.Image) *index {
	s := &index{byName: map[string]*reclaim.Image{}}
	for _, it := range images {
		i := &reclaim.Image{ID: it.ID, Names: it.Names, Bytes: it.Size, Pinned: it.Pinned}
		s.images = append(s.images, i)
		s.byName[it.ID] = i
		for _, n := range it.Names {
			s.byName[full(n)] = i
		}
	}
	return s
}

// full returns a name with the defaults for registry and tag. It returns an ID unchanged.
func full(name string) string {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return name
	}
	return ref.String()
}

func (s *index) find(name string) *reclaim.Image {
	if i := s.byName[name]; i != nil {
		return i
	}
	if i := s.byName[full(name)]; i != nil {
		return i
	}
	return s.byName["sha256:"+name]
}

// use adds a user to the image of that name, if it is present.
func (s *index) use(name, user string) {
	if i := s.find(name); i != nil && !slices.Contains(i.Users, user) {
		i.Users = append(i.Users, user)
	}
}

// Find returns the image with that name, digest or ID. Four or more characters find an image if
// exactly one ID begins with them. Find returns nil if there is no such image.
func Find(images []reclaim.Image, name string) *reclaim.Image {
	var found *reclaim.Image
	for k := range images {
		i := &images[k]
		if i.ID == name || slices.ContainsFunc(i.Names, func(n string) bool { return full(n) == full(name) }) {
			return i
		}
		if id := strings.TrimPrefix(name, "sha256:"); len(id) >= 4 && strings.HasPrefix(strings.TrimPrefix(i.ID, "sha256:"), id) {
			if found != nil {
				return nil
			}
			found = i
		}
	}
	return found
}

// FullName returns the full form of name if that is a name of the image that Find finds, else the
// image's tag, else its digest, else its ID. It returns "" if there is no such image.
func FullName(images []pod.Image, name string) string {
	s := newIndex(images)
	all := make([]reclaim.Image, 0, len(s.images))
	for _, i := range s.images {
		all = append(all, *i)
	}
	i := Find(all, name)
	if i == nil {
		return ""
	}
	if slices.Contains(i.Names, full(name)) {
		return full(name)
	}
	return i.Name()
}

// registriesOf returns the registries that an image was pulled from: those of its digests. An image
// without a digest was imported, and has none.
func registriesOf(names []string) (all []string) {
	for _, n := range names {
		ref, err := reference.ParseNormalizedNamed(n)
		if err != nil {
			continue
		}
		if _, pulled := ref.(reference.Digested); pulled {
			all = append(all, reference.Domain(ref))
		}
	}
	return all
}
