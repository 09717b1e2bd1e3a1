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

// records are the files about image pulls on disk (C-1.39.6), of two kinds:
//
//   - An intent (the kubelet's ImagePullIntent, directory "pulling") names an image whose pull
//     has begun. It is removed when the outcome of the pull is known for each runtime that was
//     asked to pull it.
//   - A pulled record (the kubelet's ImagePulledRecord, directory "pulled") lists the
//     credentials that have pulled an image.
//
// An image with neither file was present before, or was imported: by default, every pod may use it
// (C-1.39.9). No file holds a credential, only its salted hash.
//
// The outcome of a pull is unknown if the pull was cancelled or timed out, if the runtime or the
// agent stopped before its end, or if its pulled record could not be written. The image may be
// present then.
type records struct {
	dir     string
	runtime string         // the endpoint of the image service
	mu      sync.Mutex     // guards the files and the maps
	pulling map[string]int // the number of running pulls, by image name

	// unknown holds the names of images whose pull has an unknown outcome, with the time at
	// which the pull ended. Their intents stay. It is nil until the intents of the previous
	// agent are read.
	unknown map[string]time.Time
}

// pulledRecord lists the credentials that have pulled one image. Without any, each pod must ask
// the registry before it uses the image.
type pulledRecord struct {
	Image string            `json:"image"` // the runtime's ID
	Repos map[string]access `json:"repos"` // by repository

	// Runtimes are the endpoints of the runtimes that the image was pulled into: each may have it.
	// Without any, as written by older agents, any runtime may have it.
	Runtimes []string `json:"runtimes,omitempty"`
}

// access lists the pods that may use an image pulled from one repository.
type access struct {
	// EveryPod is true if the image was pulled with a credential of the node, or without any
	// (the kubelet's NodePodsAccessible).
	EveryPod bool         `json:"node,omitempty"`
	Secrets  []secretUsed `json:"secrets,omitempty"`
}

// secretUsed is a pull secret that has pulled an image. Hash is the salted hash of its
// credential at that time.
type secretUsed struct {
	secretRef
	Salt string `json:"salt"`
	Hash string `json:"hash"`
}

// maxSecrets limits the secrets in the record of one image.
const maxSecrets = 100

func newRecords(dir, runtime string) *records {
	return &records{dir: dir, runtime: runtime, pulling: map[string]int{}}
}

// mayUse reports whether a pod with these pull secrets may use an image that is present under
// the name n. preloaded is the answer for an image that the agent has not pulled.
func (r *records) mayUse(id string, n name, secrets []credential, preloaded bool) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.load(id)
	if err != nil {
		return false, err
	}
	if rec == nil {
		i, err := r.readIntent(r.file("pulling", n.image))
		if errors.Is(err, fs.ErrNotExist) || err == nil && !i.isOf(r.runtime) {
			return preloaded, nil
		}
		return false, err
	}
	a := rec.Repos[n.repo]
	if a.EveryPod {
		return true, nil
	}
	for _, c := range secrets {
		if i := slices.IndexFunc(a.Secrets, func(u secretUsed) bool { return u.allows(c) }); i >= 0 {
			if a.Secrets[i].Hash != hashOf(a.Secrets[i].Salt, c) || a.Secrets[i].secretRef != *c.secret {
				err = r.addCredential(rec, n, c)
			}
			return true, err
		}
	}
	return false, nil
}

// allows reports whether a pod with c may use an image that u has pulled. c must be the same
// credential, or come from the same Secret, whose content may have changed. A Secret without a
// UID is identified by its content only, because any source can use its name.
func (u secretUsed) allows(c credential) bool {
	return u.Hash == hashOf(u.Salt, c) || c.secret.UID != "" && u.secretRef == *c.secret
}

// beginPull counts a pull as running and writes its intent. Each successful call needs one of
// endPull or endUnknown.
func (r *records) beginPull(n name) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pulling[n.image]++; r.pulling[n.image] > 1 {
		return nil
	}
	err := r.writeIntent(n.image)
	if err != nil {
		r.countDown(n)
	}
	return err
}

// endPull ends a pull whose outcome is known. It removes the intent, unless another pull of the
// image runs or has an unknown outcome.
func (r *records) endPull(n name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, unknown := r.unknown[n.image]; r.countDown(n) == 0 && !unknown {
		_ = r.settleIntent(n.image) // if this fails, the next pod asks the registry
	}
}

// endUnknown ends a pull whose outcome is unknown. The intent stays.
func (r *records) endUnknown(n name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countDown(n)
	if r.unknown != nil {
		r.unknown[n.image] = time.Now()
	}
}

// countDown removes one running pull of an image and returns how many are left. The caller holds
// the mutex.
func (r *records) countDown(n name) (left int) {
	r.pulling[n.image]--
	left = r.pulling[n.image]
	if left == 0 {
		delete(r.pulling, n.image)
	}
	return left
}

// recordPulled records that c has pulled an image.
func (r *records) recordPulled(id string, n name, c credential) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.load(id)
	switch {
	case err != nil: // a damaged record is replaced by one for this credential
		rec = &pulledRecord{Image: id}
	case rec == nil:
		rec = r.newRecord(id)
	}
	return r.addCredential(rec, n, c)
}

// newRecord returns a record without a credential, of an image that only this runtime may have.
func (r *records) newRecord(id string) *pulledRecord {
	rec := &pulledRecord{Image: id}
	if r.runtime != "" {
		rec.Runtimes = []string{r.runtime}
	}
	return rec
}

// addCredential adds c and this runtime to the pulled record of an image and writes it, if that
// changes it. The caller holds the mutex.
func (r *records) addCredential(rec *pulledRecord, n name, c credential) error {
	if rec.Repos == nil {
		rec.Repos = map[string]access{}
	}
	known := !r.addRuntime(rec)
	a := rec.Repos[n.repo]
	switch {
	case a.EveryPod && known:
		return nil
	case a.EveryPod:
	case c.secret == nil:
		a = access{EveryPod: true}
	default:
		a.Secrets = slices.DeleteFunc(a.Secrets, func(u secretUsed) bool { return u.secretRef == *c.secret })
		salt := rand.Text()
		a.Secrets = append(a.Secrets, secretUsed{*c.secret, salt, hashOf(salt, c)})
		a.Secrets = a.Secrets[max(0, len(a.Secrets)-maxSecrets):]
	}
	rec.Repos[n.repo] = a
	return r.write(r.file("pulled", rec.Image), rec)
}

// addRuntime notes in a record that this runtime has the image, and reports whether that is new.
func (r *records) addRuntime(rec *pulledRecord) bool {
	if len(rec.Runtimes) == 0 || slices.Contains(rec.Runtimes, r.runtime) {
		return false
	}
	rec.Runtimes = append(rec.Runtimes, r.runtime)
	return true
}

// hashOf returns a hash that identifies a credential and does not reveal it.
func hashOf(salt string, c credential) string {
	mac := hmac.New(sha256.New, []byte(salt))
	fmt.Fprintf(mac, "%q %q", c.user, c.password)
	return hex.EncodeToString(mac.Sum(nil))
}

// file returns the path of an intent (kind "pulling", by image name) or of a pulled record
// ("pulled", by image ID), which has the kubelet's name. The name is hashed because it may contain
// any character.
func (r *records) file(kind, image string) string {
	path := filepath.Join(r.dir, kind, fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(image))))
	if kind == "pulled" {
		return path
	}
	return path + earlierSuffix
}

// earlierSuffix ends the names of intents, and those of the pulled records of older agents.
const earlierSuffix = ".json"

// adopt gives the pulled record of an older agent its present name, and returns that. If it fails,
// the image must not count as one without a record, which every pod may use.
func (r *records) adopt(id string) (file string, err error) {
	file = r.file("pulled", id)
	if _, err := os.Lstat(file); err == nil {
		return file, nil
	}
	switch err := os.Link(file+earlierSuffix, file); {
	case errors.Is(err, fs.ErrNotExist):
		return file, nil
	case err != nil:
		return file, err
	}
	return file, os.Remove(file + earlierSuffix)
}

// load returns the pulled record of an image, nil if there is none.
func (r *records) load(id string) (*pulledRecord, error) {
	file, err := r.adopt(id)
	if err != nil {
		return nil, err
	}
	js, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rec := &pulledRecord{}
	if err := json.Unmarshal(js, rec); err == nil && rec.Image == id {
		return rec, nil
	}
	if rec := ofKubelet(js, id); rec != nil {
		return rec, nil
	}
	return nil, fmt.Errorf("record of image %s is damaged", id)
}

// ofKubelet translates the record of a kubelet. It returns nil for the record of another image. Its hashes of
// credentials have no salt, and are not taken over: pods with pull secrets ask the registry once.
func ofKubelet(js []byte, id string) *pulledRecord {
	var record struct {
		Kind              string
		ImageRef          string
		CredentialMapping map[string]struct{ NodePodsAccessible bool }
	}
	if err := json.Unmarshal(js, &record); err != nil || record.Kind != "ImagePulledRecord" || record.ImageRef != id {
		return nil
	}
	rec := &pulledRecord{Image: id, Repos: map[string]access{}}
	for repo, pulled := range record.CredentialMapping {
		if pulled.NodePodsAccessible {
			rec.Repos[repo] = access{EveryPod: true}
		}
	}
	return rec
}

// RemoveRecord removes the pulled record of an image whose removal from the node began at that
// time. The record stays while any pull runs, or if it was written since then or up to a second
// before: the image may be present again, and without a record every pod may use it. For the same
// reason it stays while another runtime may have the image.
func (p *Puller) RemoveRecord(id string, removalBegan time.Time) {
	r := p.records
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := r.adopt(id)
	info, err := os.Stat(at)
	if err != nil || len(r.pulling) > 0 || info.ModTime().After(removalBegan.Add(-time.Second)) {
		return
	}
	r.removeRuntime(at)
}

// removeRuntime removes this runtime from the record in a file, and the file if no other runtime may
// have the image. If it fails, pods must show their credentials as before. The caller holds the mutex.
func (r *records) removeRuntime(file string) {
	rec := &pulledRecord{}
	js, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(js, rec) != nil {
		return
	}
	switch i := slices.Index(rec.Runtimes, r.runtime); {
	case i < 0: // also in a record of an older agent
	case len(rec.Runtimes) == 1:
		_ = os.Remove(file)
	default:
		rec.Runtimes = slices.Delete(rec.Runtimes, i, i+1)
		_ = r.write(file, rec)
	}
}

// RemoveRecordsExcept removes the pulled records of all images except ids, which the runtime has
// listed. Such records remain when another program has removed an image, or RemoveRecord has left the
// record. A record stays in the cases of RemoveRecord; began is the time before the list. An empty
// list removes nothing: it may be a fault of the runtime, and without records every pod may use an
// image.
func (p *Puller) RemoveRecordsExcept(ids []string, began time.Time) {
	r := p.records
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(ids) == 0 || len(r.pulling) > 0 {
		return
	}
	keep := make(map[string]bool, len(ids))
	for _, id := range ids {
		name := filepath.Base(r.file("pulled", id))
		keep[name], keep[name+earlierSuffix] = true, true
	}
	dir := filepath.Join(r.dir, "pulled")
	entries, _ := os.ReadDir(dir) // the next call reads it again
	for _, e := range entries {
		info, err := e.Info()
		switch file := filepath.Join(dir, e.Name()); {
		case err != nil || keep[e.Name()] || !info.ModTime().Before(began.Add(-time.Second)) || !strings.HasPrefix(e.Name(), "sha256-"):
		case filepath.Ext(file) == tempSuffix:
			_ = os.Remove(file) // a killed agent was writing it
		default:
			r.removeRuntime(file)
		}
	}
}

// tempSuffix ends the names of files that are being written.
const tempSuffix = ".tmp"

// write replaces a file atomically.
func (r *records) write(file string, v any) error {
	js, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, js, atomicfile.Options{Temp: tempSuffix, Sync: true})
}

// unknownPulls returns the names of images whose pull, by this agent or a previous one, has an
// unknown outcome, with the time at which it ended (zero for a previous agent). It leaves out
// pulls that ended within lateImageDelay.
func (r *records) unknownPulls() (map[string]time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unknown == nil {
		names, err := r.intents()
		if err != nil {
			return nil, err
		}
		r.unknown = map[string]time.Time{}
		for _, image := range names {
			r.unknown[image] = time.Time{}
		}
	}
	due := map[string]time.Time{}
	for image, ended := range r.unknown {
		if time.Since(ended) >= lateImageDelay {
			due[image] = ended
		}
	}
	return due, nil
}

// recordUnknown handles an unknown outcome of a pull that ended at that time. id is the ID of the
// image, "" if it is not present. An image without a pulled record gets one that lists no
// credential, and wrote is then true. An existing record also gets this runtime.
//
// recordUnknown settles the intent unless a pull runs. If a later pull has ended with an unknown
// outcome, too, it keeps both the intent and that outcome.
func (r *records) recordUnknown(id, image string, ended time.Time) (wrote bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id != "" {
		rec, err := r.load(id)
		if err != nil {
			return false, err
		}
		if wrote = rec == nil; wrote {
			rec = r.newRecord(id)
		}
		if wrote || r.addRuntime(rec) {
			if err := r.write(r.file("pulled", id), rec); err != nil {
				return false, err
			}
		}
	}
	if !r.unknown[image].Equal(ended) {
		return wrote, nil
	}
	if r.pulling[image] == 0 {
		if err := r.settleIntent(image); err != nil {
			return wrote, err
		}
	}
	delete(r.unknown, image)
	return wrote, nil
}

// recordUnknownPulls looks for the images of pulls with an unknown outcome. For each image that is
// present, it records that the credential which pulled it is unknown. Pods must then ask the registry
// before they use the image, under any of its names. It returns an error if the runtime does not
// answer.
func (p *Puller) recordUnknownPulls(ctx context.Context, want *pod.Spec) error {
	p.unknownMu.Lock()
	defer p.unknownMu.Unlock()
	pulls, err := p.records.unknownPulls()
	if err != nil {
		return fmt.Errorf("read records of image pulls: %w", err)
	}
	for image, ended := range pulls {
		id, err := p.cfg.Runtime.FindImage(ctx, want, image)
		if err != nil && !runtimeAnswered(err) {
			return err
		}
		var wrote bool
		if err == nil {
			wrote, err = p.records.recordUnknown(id, image, ended)
		}
		if err != nil { // this must not block other images; the next call tries again
			p.cfg.Log.Warn("Failed to check an image pull with unknown outcome", "image", image, "error", err)
		}
		if wrote { // also for an image that was present before the pull: no file says that it was
			p.cfg.Log.Warn("Outcome of an image pull is unknown; pods must ask the registry before they use the image",
				"image", image, "reason", "there is no record of which credentials pulled it")
		}
	}
	return nil
}
