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

// isOf reports whether the intent concerns a runtime.
func (i intent) isOf(runtime string) bool {
	return len(i.Runtimes) == 0 || slices.Contains(i.Runtimes, runtime)
}

// errIntentDamaged is the error for the file of an intent whose content is invalid.
var errIntentDamaged = errors.New("intent of an image pull is damaged")

// readIntent reads the intent in a file. The caller holds the mutex.
func (r *records) readIntent(file string) (i intent, err error) {
	js, err := os.ReadFile(file)
	if err != nil {
		return intent{}, err
	}
	if json.Unmarshal(js, &i) != nil || r.file("pulling", i.Image) != file {
		return intent{}, errIntentDamaged
	}
	return i, nil
}

// loadIntent reads the intent of an image; ok is false if there is none, or only a damaged one. The
// caller holds the mutex.
func (r *records) loadIntent(image string) (i intent, ok bool, err error) {
	i, err = r.readIntent(r.file("pulling", image))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errIntentDamaged) {
		return intent{}, false, nil
	}
	return i, err == nil, err
}

// writeIntent writes that this runtime is asked to pull an image. The caller holds the mutex.
func (r *records) writeIntent(image string) error {
	i, _, err := r.loadIntent(image)
	if err != nil {
		return err
	}
	i.Image = image
	if r.runtime != "" && !slices.Contains(i.Runtimes, r.runtime) {
		i.Runtimes = append(i.Runtimes, r.runtime)
	}
	return r.write(r.file("pulling", image), i)
}

// settleIntent notes that the outcome of this runtime's pulls of an image is known. It removes the
// intent unless another runtime has yet to settle it. The caller holds the mutex.
func (r *records) settleIntent(image string) error {
	i, ok, err := r.loadIntent(image)
	if err != nil || ok && !i.isOf(r.runtime) {
		return err
	}
	others := slices.DeleteFunc(i.Runtimes, func(name string) bool { return name == r.runtime })
	if len(others) > 0 {
		return r.write(r.file("pulling", image), intent{Image: image, Runtimes: others})
	}
	if err := os.Remove(r.file("pulling", image)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// intents returns the names of the images that have an intent of this runtime. It removes damaged
// intents. The caller holds the mutex.
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
		file := filepath.Join(dir, e.Name())
		i, err := r.readIntent(file)
		switch {
		case errors.Is(err, errIntentDamaged):
			_ = os.Remove(file) // half written: the pull had not begun
		case err != nil:
			return nil, err
		case i.isOf(r.runtime):
			names = append(names, i.Image)
		}
	}
	return names, nil
}
