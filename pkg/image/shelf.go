package image

import (
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// shelf finds images by the names that pods and runtimes call them.
type shelf struct {
	images []*reclaim.Image
	by     map[string]*reclaim.Image // by ID, tag and digest, in full
}

func newShelf(images []pod.Image) *shelf {
	s := &shelf{by: map[string]*reclaim.Image{}}
	for _, it := range images {
		i := &reclaim.Image{ID: it.ID, Names: it.Names, Bytes: it.Size, Pinned: it.Pinned}
		s.images = append(s.images, i)
		s.by[it.ID] = i
		for _, n := range it.Names {
			s.by[full(n)] = i
		}
	}
	return s
}

// full returns a name with the defaults for registry and tag; an ID as it is.
func full(name string) string {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return name
	}
	return ref.String()
}

func (s *shelf) find(name string) *reclaim.Image {
	if i := s.by[name]; i != nil {
		return i
	}
	if i := s.by[full(name)]; i != nil {
		return i
	}
	return s.by["sha256:"+name]
}

func (s *shelf) use(name, user string) {
	if i := s.find(name); i != nil && !slices.Contains(i.Users, user) {
		i.Users = append(i.Users, user)
	}
}

// Find returns the image of that name, digest, ID, or beginning of an ID of which there is
// only one; nil if there is none.
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

// FullName returns the name under which a runtime has the image of that name, digest or ID:
// its own, if it names one, else its tag, else its digest; "" if it has none.
func FullName(images []pod.Image, name string) string {
	s := newShelf(images)
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

// registriesOf returns the registries that an image was pulled from, none for one without the
// digest of a registry: it was imported.
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
