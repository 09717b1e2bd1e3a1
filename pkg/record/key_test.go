package record_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
)

// sameSets compares sets by their meaning.
var sameSets = cmp.Comparer(func(a, b *v1.Pod) bool { return equality.Semantic.DeepEqual(a, b) })

// holdsSecret reports whether a set below dir has the Secret of onlySecret: plain, in
// base64, or as a hash.
func holdsSecret(t *testing.T, dir string) bool {
	t.Helper()
	found := false
	for _, path := range setFiles(t, dir) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found = found || bytes.Contains(data, []byte(secret)) || bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString([]byte(secret)))) ||
			bytes.Contains(data, []byte("v1-d")) // a hash can be used to guess it
	}
	return found
}

// onlySecret is standing without the pod and the ConfigMap, which have the same value.
func onlySecret(n int) pod.LastGoodSet {
	s := fileSet(setFile, n)
	s.Pods[0].Pod = &v1.Pod{}
	s.Objects = s.Objects[:1]
	return s
}

// A copy of the root directory contains no Secret: last-known-good sets have them
// encrypted, and the key is outside the root. The agent after a reboot reads them, without
// their source. Unchanged files are not written again.
//
// Shows: D1
func TestSets_Secrets_AreEncryptedAndSurviveAReboot(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	saveSet(t, newSets(root), setLayer, onlySecret(1))
	if holdsSecret(t, root) {
		t.Error("the Secret is in clear text")
	}
	info, err := os.Stat(root + ".key")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: %v %v", info, err)
	}
	got := setOf(t, root, setLayer)
	if diff := cmp.Diff([]pod.LastGoodSet{onlySecret(1)}, got.Files, sameSets); diff != "" {
		t.Errorf("after a reboot (-want +got):\n%s", diff)
	}
	before, err := os.Stat(fileOfSet(t, root))
	if err != nil {
		t.Fatal(err)
	}
	saveSet(t, newSets(root), setLayer, onlySecret(1))
	if after, err := os.Stat(fileOfSet(t, root)); err != nil || !os.SameFile(before, after) {
		t.Errorf("a set that did not change was written again: %v", err)
	}
	for _, files := range [][]string{setFiles(t, root)} {
		for _, path := range files {
			if data, err := os.ReadFile(path); err != nil || bytes.Contains(data, []byte(`"key"`)) {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// The agent encrypts at once a set that an older nodectl wrote in clear text; a command
// that only reads changes nothing.
//
// Shows: D1
func TestSets_ClearTextOfAnOlderVersion_IsReadAndEncrypted(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	record.SaveClear(t, root, setLayer, onlySecret(1))
	if !holdsSecret(t, root) {
		t.Fatal("the older version's set has no Secret in clear text")
	}
	all, err := record.ReadSets(root, record.NewKey(root, ""))
	if err != nil || cmp.Diff([]pod.LastGoodSet{onlySecret(1)}, all[setLayer].Files, sameSets) != "" || !holdsSecret(t, root) {
		t.Errorf("looked at: %v, %v", all, err)
	}
	if diff := cmp.Diff([]pod.LastGoodSet{onlySecret(1)}, setOf(t, root, setLayer).Files, sameSets); diff != "" {
		t.Errorf("read by the agent (-want +got):\n%s", diff)
	}
	if holdsSecret(t, root) {
		t.Error("the Secret is still in clear text")
	}
	if diff := cmp.Diff([]pod.LastGoodSet{onlySecret(1)}, setOf(t, root, setLayer).Files, sameSets); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
}

// Without the key only the Secrets are missing, and an error says so; the pods and the rest
// of the file are read. An exchanged file or another key is not used.
//
// Shows: D1
func TestSets_KeyLostOrForeign_CostsTheSecretsAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(key string) error{
		"lost":              os.Remove,
		"readable by group": func(key string) error { return os.Chmod(key, 0o640) },
		"a link": func(key string) error {
			if err := os.Rename(key, key+".moved"); err != nil {
				return err
			}
			return os.Symlink(key+".moved", key)
		},
		"damaged": func(key string) error { return os.WriteFile(key, []byte(`{"version":1,"key":"AAAA"}`), 0o600) },
		"another": func(key string) error {
			return os.WriteFile(key, fmt.Appendf(nil, `{"version":1,"key":"%s"}`, base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600)
		},
	} {
		root := filepath.Join(t.TempDir(), "root")
		saveSet(t, newSets(root), setLayer, fileSet(setFile, 1))
		if err := spoil(root + ".key"); err != nil {
			t.Fatal(err)
		}
		all, err := newSets(root).Load()
		want := fileSet(setFile, 1)
		want.Objects = want.Objects[1:]
		if diff := cmp.Diff([]pod.LastGoodSet{want}, all[setLayer].Files, sameSets); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if err == nil || !strings.Contains(err.Error(), "Secret default/conf") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
		if left := setFiles(t, root); len(left) != 2 {
			t.Errorf("%s: files %v", name, left)
		}
	}
}

// With systemd-creds the key's file cannot be used on another machine; if the program
// fails, the file has the plain key.
func TestKey_SystemdCreds_WrapsTheKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	creds := filepath.Join(dir, "systemd-creds")
	program := func(text string) {
		if err := os.WriteFile(creds, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const works = `[ "$2" = --name=nodectl-sets ] || exit 1
case $1 in
encrypt) [ "$3 $4 $5" = "--tpm2-pcrs= - -" ] && printf wrapped: && base64 ;;
decrypt) [ "$3 $4" = "- -" ] && dd bs=1 skip=8 2>/dev/null | base64 -d ;;
esac
`
	program(works)
	root := filepath.Join(dir, "root")
	saveSet(t, record.NewSets(root, record.NewKey(root, creds)), setLayer, onlySecret(1))
	text, err := os.ReadFile(root + ".key")
	if err != nil || !strings.Contains(string(text), `"wrapped":"systemd-creds"`) || !strings.Contains(string(text), base64.StdEncoding.EncodeToString([]byte("wrapped:"))[:10]) {
		t.Errorf("key %s, %v", text, err)
	}
	all, err := record.NewSets(root, record.NewKey(root, creds)).Load()
	if diff := cmp.Diff([]pod.LastGoodSet{onlySecret(1)}, all[setLayer].Files, sameSets); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	program("echo no TPM >&2; exit 1\n")
	if _, err := record.NewSets(root, record.NewKey(root, creds)).Load(); err == nil || !strings.Contains(err.Error(), "no TPM") {
		t.Errorf("on another machine: %v", err)
	}
	if _, err := newSets(root).Load(); err == nil {
		t.Error("the key's file alone opens the Secrets")
	}
	other := filepath.Join(dir, "other")
	saveSet(t, record.NewSets(other, record.NewKey(other, creds)), setLayer, onlySecret(1))
	if diff := cmp.Diff([]pod.LastGoodSet{onlySecret(1)}, setOf(t, other, setLayer).Files, sameSets); diff != "" {
		t.Errorf("where the program fails (-want +got):\n%s", diff)
	}
}
