package image

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// intent is the content of an intent's file.
type intent struct {
	Image string `json:"image"` // the name
	// Runtimes are the endpoints of the runtimes that were asked to pull the image, and whose pull
	// has not ended with a known outcome. Only they can settle the intent: another runtime that
	// lacks the image says nothing about them. It is empty in the intent of an older agent.
	Runtimes []string `json:"runtimes,omitempty"`
}

// UnmarshalJSON also reads the intent of an older agent, which is the name of the image.
func (i *intent) UnmarshalJSON(js []byte) error {
	if json.Unmarshal(js, &i.Image) == nil {
		return nil
	}
	type plain intent // without this method
	return json.Unmarshal(js, (*plain)(i))
}

// loadIntent reads the intent of an image; ok is false if there is none, or only a damaged one. The
// caller holds the mutex.
func (r *records) loadIntent(image string) (i intent, ok bool) {
	js, err := os.ReadFile(r.file("pulling", image))
	ok = err == nil && json.Unmarshal(js, &i) == nil && i.Image == image
	return i, ok
}

// writeIntent writes that this runtime is asked to pull an image. The caller holds the mutex.
func (r *records) writeIntent(image string) error {
	i, ok := r.loadIntent(image)
	if !ok {
		i = intent{Image: image}
	}
	if r.runtime != "" && !slices.Contains(i.Runtimes, r.runtime) {
		i.Runtimes = append(i.Runtimes, r.runtime)
	}
	return r.write(r.file("pulling", image), i)
}

// settleIntent notes that the outcome of this runtime's pulls of an image is known. It removes the
// intent unless another runtime has yet to settle it. The caller holds the mutex.
func (r *records) settleIntent(image string) error {
	i, ok := r.loadIntent(image)
	others := slices.DeleteFunc(slices.Clone(i.Runtimes), func(name string) bool { return name == r.runtime })
	switch {
	case ok && len(others) == len(i.Runtimes) && len(others) > 0: // it is not of this runtime
		return nil
	case ok && len(others) > 0:
		return r.write(r.file("pulling", image), intent{Image: image, Runtimes: others})
	}
	if err := os.Remove(r.file("pulling", image)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// intents returns the names of the images that have an intent. The caller holds the mutex.
func (r *records) intents() ([]string, error) {
	dir := filepath.Join(r.dir, "pulling")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		var i intent
		js, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil || json.Unmarshal(js, &i) != nil || r.file("pulling", i.Image) != filepath.Join(dir, e.Name()) {
			_ = os.Remove(filepath.Join(dir, e.Name())) // half written: the pull had not begun
			continue
		}
		names = append(names, i.Image)
	}
	return names, nil
}
