package record

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Key encrypts the Secrets of sets. It is a random number in a file outside the root
// directory, with mode 0600. systemd-creds encrypts the number in the file, with the machine's
// TPM if there is one. Without systemd-creds the file has the plain number: that protects only copies
// and backups of the root directory.
//
// The file is made for the first Secret. Many goroutines may use a Key.
type Key struct {
	path  string
	creds string // the path of systemd-creds; "" for none

	mu     sync.Mutex
	opened *opened // nil: not read yet
}

// opened is a key in memory.
type opened struct {
	aead  cipher.AEAD
	nonce []byte // the key for nonces
}

// keyFile is the content of a key's file.
type keyFile struct {
	Version int    `json:"version"`
	Wrapped string `json:"wrapped,omitempty"` // the program that encrypted Key: systemd-creds; "": none
	Key     []byte `json:"key"`
}

const (
	keySize     = 32
	wrappedBy   = "systemd-creds"
	credsName   = "--name=nodectl-sets"
	credsTime   = 20 * time.Second // a TPM is slow
	largestKey  = 64 << 10
	keySuffix   = ".key"
	keyVersion  = 1
	keyIsLost   = "remove the file: nodectl makes a new key and reads the Secrets from their sources again"
	secretsLost = "cannot decrypt Secrets of last good sets"
)

// noKey has no key: sets that are read with it lack Secrets.
var noKey = &Key{}

// NewKey returns the key of a root directory. Its file is <root>.key. creds is the path of
// systemd-creds, "" for none. NewKey does no I/O.
func NewKey(root, creds string) *Key {
	return &Key{path: filepath.Clean(root) + keySuffix, creds: creds}
}

// Open reads the key, if there is one. It may execute systemd-creds. After a successful Open, uses of
// the key execute nothing.
func (k *Key) Open() error {
	_, err := k.open(false)
	return err
}

// open returns the key. If there is none, it makes one, or returns nil if make is false.
func (k *Key) open(make bool) (*opened, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened != nil {
		return k.opened, nil
	}
	number, err := k.read()
	if errors.Is(err, fs.ErrNotExist) {
		if !make {
			return nil, nil
		}
		number, err = k.make()
	}
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived(number, "seal"))
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	k.opened = &opened{aead: aead, nonce: derived(number, "nonce")}
	return k.opened, nil
}

// derived returns the key for one use.
func derived(number []byte, use string) []byte {
	sum := hmac.New(sha256.New, number)
	sum.Write([]byte("nodectl sets " + use))
	return sum.Sum(nil)
}

// read reads the file, which only the agent's user may own, read and write.
func (k *Key) read() ([]byte, error) {
	f, err := os.OpenFile(k.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("read key %s: must be a regular file with mode 0600 that the agent's user owns", k.path)
	}
	data, err := io.ReadAll(io.LimitReader(f, largestKey))
	if err != nil {
		return nil, err
	}
	var file keyFile
	if json.Unmarshal(data, &file) != nil || file.Version != keyVersion {
		return nil, fmt.Errorf("read key %s: damaged, or of another version; %s", k.path, keyIsLost)
	}
	number := file.Key
	if file.Wrapped != "" {
		if number, err = k.run("decrypt", number); err != nil {
			return nil, fmt.Errorf("open key %s with %s: %w; %s", k.path, file.Wrapped, err, keyIsLost)
		}
	}
	if len(number) != keySize {
		return nil, fmt.Errorf("read key %s: damaged; %s", k.path, keyIsLost)
	}
	return number, nil
}

// make makes a key and its file.
func (k *Key) make() ([]byte, error) {
	number := make([]byte, keySize)
	if _, err := rand.Read(number); err != nil {
		return nil, err
	}
	file := keyFile{Version: keyVersion, Key: number}
	if k.creds != "" {
		wrapped, err := k.run("encrypt", number)
		if err == nil {
			if again, err := k.run("decrypt", wrapped); err == nil && bytes.Equal(again, number) {
				file.Wrapped, file.Key = wrappedBy, wrapped
			}
		}
	}
	data, err := json.Marshal(file)
	if err != nil {
		return nil, err
	}
	if err := replace(k.path, append(data, '\n')); err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return number, nil
}

// run executes systemd-creds to encrypt or decrypt. It binds the key to no register of the TPM, so
// that an update of the firmware does not make the key unreadable.
func (k *Key) run(verb string, in []byte) ([]byte, error) {
	if k.creds == "" {
		return nil, errors.New("systemd-creds is not available")
	}
	ctx, stop := context.WithTimeout(context.Background(), credsTime)
	defer stop()
	args := []string{verb, credsName}
	if verb == "encrypt" {
		args = append(args, "--tpm2-pcrs=")
	}
	cmd := exec.CommandContext(ctx, k.creds, append(args, "-", "-")...)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("%w: %.200q", err, first)
	}
	return out, nil
}

// seal encrypts text. about identifies the text, and has to be the same in unseal. Equal inputs give
// equal results, so that an unchanged set is not written again.
func (o *opened) seal(about string, text []byte) []byte {
	sum := hmac.New(sha256.New, o.nonce)
	fmt.Fprintf(sum, "%d\n%s\n", len(about), about)
	sum.Write(text)
	nonce := sum.Sum(nil)[:o.aead.NonceSize()]
	return o.aead.Seal(nonce, nonce, text, []byte(about))
}

// unseal decrypts the result of seal.
func (o *opened) unseal(about string, sealed []byte) ([]byte, error) {
	n := o.aead.NonceSize()
	if len(sealed) < n {
		return nil, errDamaged
	}
	return o.aead.Open(nil, sealed[:n:n], sealed[n:], []byte(about))
}
