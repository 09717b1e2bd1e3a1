package image

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/pod"
)

// records are the records of pulls on disk (C-1.39.6), in two directories. "pulling" has a
// file for each image whose pull has begun, until its outcome is known; "pulled" has one
// for each image that was pulled. Images without either were there before, or were
// imported: every pod may use them. No file holds a credential, only its salted hash.
type records struct {
	dir string
	mu  sync.Mutex     // guards the files
	now map[string]int // the number of pulls of an image under way, by name

	// unsettled maps the images of pulls with unknown outcome, by name, to the time since
	// when; their intents stay. Nil: the intents of the previous agent are not read yet.
	unsettled map[string]time.Time
}

// record says which credentials pulled one image.
type record struct {
	Image string            `json:"image"` // the runtime's ID
	Repos map[string]access `json:"repos"` // by the name it was pulled under
}

// access says who may use an image that was pulled under one name.
type access struct {
	Node    bool         `json:"node,omitempty"` // every pod
	Secrets []secretUsed `json:"secrets,omitempty"`
}

// secretUsed is a pull secret that once served.
type secretUsed struct {
	secretRef
	Salt string `json:"salt"`
	Hash string `json:"hash"`
}

// mostSecrets limits the secrets in the record of one image.
const mostSecrets = 100

func newRecords(dir string) *records { return &records{dir: dir, now: map[string]int{}} }

// mayUse reports whether a pod with these pull secrets may use an image that is present
// under that name.
func (r *records) mayUse(id string, n name, secrets []credential) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.load(id)
	if err != nil {
		return false, err
	}
	if rec == nil {
		_, err := os.Stat(r.file("pulling", n.image))
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		return false, err
	}
	a := rec.Repos[n.repo]
	if a.Node {
		return true, nil
	}
	for _, c := range secrets {
		if i := slices.IndexFunc(a.Secrets, func(u secretUsed) bool { return u.is(c) }); i >= 0 {
			if a.Secrets[i].Hash != sum(a.Secrets[i].Salt, c) || a.Secrets[i].secretRef != *c.secret {
				err = r.add(rec, n, c)
			}
			return true, err
		}
	}
	return false, nil
}

// is reports whether a pod with c may use an image that u served for. c must be the same
// credential, or come from the same Secret, whose content may have changed. A Secret
// without a UID is identified by its content only: any source can use its name.
func (u secretUsed) is(c credential) bool {
	return u.Hash == sum(u.Salt, c) || c.secret.UID != "" && u.secretRef == *c.secret
}

// intend records that a pull of an image begins.
func (r *records) intend(n name) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now[n.image]++; r.now[n.image] > 1 {
		return nil
	}
	err := r.write(r.file("pulling", n.image), n.image)
	if err != nil {
		r.forget(n)
	}
	return err
}

// done removes the record that intend wrote.
func (r *records) done(n name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, doubt := r.unsettled[n.image]; r.forget(n) == 0 && !doubt {
		_ = os.Remove(r.file("pulling", n.image)) // if it stays, the registry is asked once more
	}
}

// unsure keeps the record that intend wrote: the outcome of the pull is unknown.
func (r *records) unsure(n name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(n)
	if r.unsettled != nil {
		r.unsettled[n.image] = time.Now()
	}
}

func (r *records) forget(n name) int {
	r.now[n.image]--
	left := r.now[n.image]
	if left == 0 {
		delete(r.now, n.image)
	}
	return left
}

// pulled records that c served to pull an image.
func (r *records) pulled(id string, n name, c credential) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.load(id)
	if err != nil || rec == nil { // a damaged record is replaced by one for this credential
		rec = &record{Image: id}
	}
	return r.add(rec, n, c)
}

// add records that c is valid for an image. The caller holds the mutex.
func (r *records) add(rec *record, n name, c credential) error {
	if rec.Repos == nil {
		rec.Repos = map[string]access{}
	}
	a := rec.Repos[n.repo]
	switch {
	case a.Node:
		return nil
	case c.secret == nil:
		a = access{Node: true}
	default:
		a.Secrets = slices.DeleteFunc(a.Secrets, func(u secretUsed) bool { return u.secretRef == *c.secret })
		salt := rand.Text()
		a.Secrets = append(a.Secrets, secretUsed{*c.secret, salt, sum(salt, c)})
		a.Secrets = a.Secrets[max(0, len(a.Secrets)-mostSecrets):]
	}
	rec.Repos[n.repo] = a
	return r.write(r.file("pulled", rec.Image), rec)
}

// sum identifies a credential by a hash that does not reveal it.
func sum(salt string, c credential) string {
	mac := hmac.New(sha256.New, []byte(salt))
	fmt.Fprintf(mac, "%q %q", c.user, c.password)
	return hex.EncodeToString(mac.Sum(nil))
}

// file returns the path of a record; the image's name is hashed, as it may contain
// anything.
func (r *records) file(kind, image string) string {
	return filepath.Join(r.dir, kind, fmt.Sprintf("sha256-%x.json", sha256.Sum256([]byte(image))))
}

// load returns the record of an image, nil when there is none.
func (r *records) load(id string) (*record, error) {
	js, err := os.ReadFile(r.file("pulled", id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rec := &record{}
	if err := json.Unmarshal(js, rec); err != nil || rec.Image != id {
		return nil, fmt.Errorf("record of image %s is damaged", id)
	}
	return rec, nil
}

// Forget removes the record of an image that was removed from the node after some moment. It
// stays if the image may have come back since: every pod may use an image without a record.
func (p *Puller) Forget(id string, removed time.Time) {
	r := p.records
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.file("pulled", id)
	info, err := os.Stat(at)
	if err != nil || len(r.now) > 0 || info.ModTime().After(removed.Add(-time.Second)) {
		return
	}
	_ = os.Remove(at) // if it stays, pods must show their credentials as before
}

// write replaces a file atomically.
func (r *records) write(file string, v any) error {
	js, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, js, atomicfile.Options{Temp: ".new-*", Sync: true})
}

// left returns the names of the images whose pull has begun, here or in a previous agent,
// with unknown outcome. Images that may still appear are left out.
func (r *records) left() (map[string]time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unsettled == nil {
		names, err := r.begun()
		if err != nil {
			return nil, err
		}
		r.unsettled = map[string]time.Time{}
		for _, image := range names {
			r.unsettled[image] = time.Time{}
		}
	}
	due := map[string]time.Time{}
	for image, since := range r.unsettled {
		if time.Since(since) >= settleDelay {
			due[image] = since
		}
	}
	return due, nil
}

// begun returns the names of the images with a recorded intent. The caller holds the mutex.
func (r *records) begun() ([]string, error) {
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
		var image string
		js, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if strings.HasPrefix(e.Name(), ".") || err != nil || json.Unmarshal(js, &image) != nil || r.file("pulling", image) != filepath.Join(dir, e.Name()) {
			_ = os.Remove(filepath.Join(dir, e.Name())) // half written: the pull had not begun
			continue
		}
		names = append(names, image)
	}
	return names, nil
}

// unknown records that an unknown credential pulled an image: every pod must ask the
// registry. It removes the doubt and the intent, unless a later pull has renewed the doubt.
// wrote says that there was no record.
func (r *records) unknown(id, image string, since time.Time) (wrote bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id != "" {
		rec, err := r.load(id)
		if err != nil {
			return false, err
		}
		if rec == nil {
			if err := r.write(r.file("pulled", id), &record{Image: id}); err != nil {
				return false, err
			}
			wrote = true
		}
	}
	if !r.unsettled[image].Equal(since) {
		return wrote, nil
	}
	if r.now[image] == 0 {
		if err := os.Remove(r.file("pulling", image)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return wrote, err
		}
	}
	delete(r.unsettled, image)
	return wrote, nil
}

// settle records the outcome of pulls that were cancelled or timed out. Their images, which
// may be there under other names too, are then not open to every pod.
func (p *Puller) settle(ctx context.Context, want *pod.Spec) error {
	p.settling.Lock()
	defer p.settling.Unlock()
	left, err := p.records.left()
	if err != nil {
		return fmt.Errorf("read records of image pulls: %w", err)
	}
	for image, since := range left {
		id, err := p.cfg.Runtime.FindImage(ctx, want, image)
		if err != nil && !isAnswer(err) {
			return err
		}
		var wrote bool
		if err == nil {
			wrote, err = p.records.unknown(id, image, since)
		}
		if err != nil { // does not block other images; the next pull tries again
			p.cfg.Log.Warn("Failed to record whether an image was pulled", "image", image, "error", err)
		}
		if wrote { // also if it was there before the pull, which is unknown
			p.cfg.Log.Warn("Outcome of an image pull is unknown; pods must ask the registry before they use the image", "image", image)
		}
	}
	return nil
}
