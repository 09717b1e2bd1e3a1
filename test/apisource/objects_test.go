package apisource

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source/apiserver"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// create makes an object of the core group in namespace default.
func create(t *testing.T, c *cluster.Cluster, what, text string) {
	t.Helper()
	if err := c.Client(t).Post().Namespace("default").Resource(what).Body([]byte(text)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, c *cluster.Cluster, what, name, text string) {
	t.Helper()
	err := c.Client(t).Patch(types.MergePatchType).Namespace("default").Resource(what).Name(name).Body([]byte(text)).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, c *cluster.Cluster, what, name string) {
	t.Helper()
	if err := c.Client(t).Delete().Namespace("default").Resource(what).Name(name).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

// holds returns the objects of a set, and those that cannot be read.
func holds(w sourcetest.Result) string {
	var out []string
	for f := range w.Files.All() {
		_, name, _ := strings.Cut(f.File, "#")
		if f.Incomplete {
			out = append(out, fmt.Sprintf("!%s: %v", name, f.Problems))
		}
		for _, o := range f.Objects {
			out = append(out, name+"="+string(o.Values()["k"]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func becomes(t *testing.T, l *sourcetest.Listener, want string) {
	t.Helper()
	wait.Equal(t, "what the set holds", want, func() string { return holds(l.Set()) })
}

// naming returns a pod that names a ConfigMap and a Secret of its own name, and optionally a
// ConfigMap of that name with "-optional".
func naming(node, name string) *v1.Pod {
	p, yes, a := cluster.Pod(node, name), true, v1.LocalObjectReference{Name: name}
	p.Spec.ServiceAccountName = "builder"
	// The server gives a node tokens for the audiences that its pods' volumes name.
	p.Spec.Volumes = []v1.Volume{{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
		Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Audience: "vault", Path: "token"}}},
	}}}}
	p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{
		{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: a}},
		{SecretRef: &v1.SecretEnvSource{LocalObjectReference: a}},
		{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name + "-optional"}, Optional: &yes}},
	}
	return p
}

// A node's own credentials suffice for all that its pods need: each object by itself,
// services, tokens and trust bundles. They give access to nothing of another node.
//
// Shows: C-1.38.10
func TestC_1_38_10_WhatPodsNeedWithNodeCredentials(t *testing.T) {
	t.Parallel()
	c := server(t)
	c.CreateNode(t, "needs")
	create(t, c, "configmaps", `{"metadata": {"name": "a"}, "data": {"k": "1"}}`)
	create(t, c, "secrets", `{"metadata": {"name": "a"}, "stringData": {"k": "hunter2"}}`)
	create(t, c, "serviceaccounts", `{"metadata": {"name": "builder"}}`)
	create(t, c, "services", `{"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}`)
	create(t, c, "services", `{"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}`)
	c.CreatePod(t, naming("needs", "a"))

	var log bytes.Buffer
	kubeconfig := c.NodeKubeconfig(t, "needs")
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	reader := newReader(t, kubeconfig, logger)
	src := newSource(t, kubeconfig, "needs", func(cfg *apiserver.Config) { cfg.Reader, cfg.Services, cfg.Log = reader, true, logger })
	l := sourcetest.Listen(t, src)
	w := l.Set()
	if got, want := holds(w), "configmap/default/a=1 secret/default/a=hunter2"; got != want {
		t.Errorf("with the first set come %q, want %q", got, want)
	}
	patch(t, c, "configmaps", "a", `{"data": {"k": "2"}}`)
	becomes(t, l, "configmap/default/a=2 secret/default/a=hunter2")
	create(t, c, "configmaps", `{"metadata": {"name": "a-optional"}, "immutable": true, "data": {"k": "3"}}`)
	becomes(t, l, "configmap/default/a-optional=3 configmap/default/a=2 secret/default/a=hunter2")
	remove(t, c, "secrets", "a")
	becomes(t, l, "configmap/default/a-optional=3 configmap/default/a=2")

	create(t, c, "secrets", `{"metadata": {"name": "late"}, "stringData": {"k": "4"}}`)
	late := cluster.Pod("needs", "late")
	late.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "late"}}
	c.CreatePod(t, late)
	becomes(t, l, "configmap/default/a-optional=3 configmap/default/a=2 secret/default/late=4")

	services, err := reader.Services("default")
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); err != nil || got != "kubernetes web" && got != "web" {
		t.Errorf("services %q, %v", got, err)
	}
	tokens(t, c, reader, w.Pod("a"))
	trust(t, c, reader)

	l.Leave()
	l.Ended()
	if text := log.String(); strings.Contains(text, "HTTP 403") || strings.Contains(text, "hunter2") {
		t.Errorf("log:\n%s", text)
	}
	kubeconfig = c.NodeKubeconfig(t, "other")
	other := newReader(t, kubeconfig, logger)
	c.CreateNode(t, "other")
	c.CreatePod(t, cluster.Pod("other", "two"))
	sourcetest.Listen(t, newSource(t, kubeconfig, "other", func(cfg *apiserver.Config) { cfg.Reader = other })).Set().Holds(t, "two")
	if _, _, err := other.Token(t.Context(), w.Pod("a"), &v1.ServiceAccountTokenProjection{}); err == nil || !strings.Contains(err.Error(), "HTTP 403") {
		t.Errorf("another node gets the pod's token: %v", err)
	}
}

// tokens: the server issues the token with the requested properties.
func tokens(t *testing.T, c *cluster.Cluster, reader *apiclient.Reader, spec *pod.Spec) {
	t.Helper()
	seconds := int64(1200)
	start := time.Now()
	of := &v1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: &seconds}
	text, renew, err := reader.Token(t.Context(), spec, of)
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Aud        []string
		Exp, Iat   int64
		Sub        string
		Kubernetes struct{ Pod struct{ Name, UID string } } `json:"kubernetes.io"`
	}
	parts := strings.Split(text, ".")
	body, err := base64.RawURLEncoding.DecodeString(parts[min(1, len(parts)-1)])
	if err != nil || json.Unmarshal(body, &claims) != nil {
		t.Fatalf("the token is no token: %v", err)
	}
	if claims.Sub != "system:serviceaccount:default:builder" || claims.Aud[0] != "vault" || claims.Exp-claims.Iat != seconds ||
		claims.Kubernetes.Pod.Name != "a" || claims.Kubernetes.Pod.UID != spec.UID() {
		t.Errorf("token says %+v", claims)
	}
	if in := renew.Sub(start); in < 940*time.Second || in > 965*time.Second {
		t.Errorf("a token of 20 minutes is renewed after %v", in)
	}
	if again, _, err := reader.Token(t.Context(), spec, of); err != nil || again != text {
		t.Errorf("asked again at once: another token, %v", err)
	}
	stranger := *spec
	stranger.Pod = spec.Pod.DeepCopy()
	stranger.Pod.UID = "gone"
	if _, _, err := reader.Token(t.Context(), &stranger, of); err == nil {
		t.Error("a token for a pod that is gone")
	}
}

func trust(t *testing.T, c *cluster.Cluster, reader *apiclient.Reader) {
	t.Helper()
	authority, err := os.ReadFile(c.Authority.File)
	if err != nil {
		t.Fatal(err)
	}
	for name, signer := range map[string]string{"plain": "", "example.com:x:1": "example.com/x"} {
		text, err := json.Marshal(map[string]any{
			"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
			"metadata": map[string]any{"name": name, "labels": map[string]string{"a": "b"}},
			"spec":     map[string]string{"signerName": signer, "trustBundle": string(authority)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err = c.Client(t).Post().AbsPath("/apis/certificates.k8s.io/v1beta1/clustertrustbundles").SetHeader("Content-Type", "application/json").
			Body(text).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	name, signer, yes := "plain", "example.com/x", true
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	for _, of := range []*v1.ClusterTrustBundleProjection{{Name: &name}, {SignerName: &signer, LabelSelector: labels}} {
		if got, err := reader.TrustBundle(t.Context(), of); err != nil || got != string(authority) {
			t.Errorf("%+v: %q, %v", of, got, err)
		}
	}
	name = "none"
	if got, err := reader.TrustBundle(t.Context(), &v1.ClusterTrustBundleProjection{Name: &name, Optional: &yes}); got != "" || err != nil {
		t.Errorf("an optional bundle that is not there: %q, %v", got, err)
	}
}

// podconfig binds a pod to the objects that it names, waits for missing ones, and binds the
// pod again when one appears or changes.
//
// Shows: C-1.38.10
func TestC_1_38_10_PodsAreBoundToWhatTheyName(t *testing.T) {
	t.Parallel()
	c := server(t)
	create(t, c, "configmaps", `{"metadata": {"name": "bound"}, "data": {"k": "1"}}`)
	c.CreatePod(t, naming("binds", "bound"))
	next := ops(t, newSource(t, c.AdminKubeconfig(t), "binds"))
	becomes := func(op, want string) {
		t.Helper()
		spec := next(op)
		got := ""
		for _, kind := range []string{pod.KindConfigMap, pod.KindSecret} {
			if values, ok := spec.Data.Values(kind, "bound"); ok {
				got += kind + "=" + string(values["k"]) + " "
			}
		}
		if got != want {
			t.Errorf("%s: bound to %q, want %q", op, got, want)
		}
	}
	becomes("ADD bound", "ConfigMap=1 ")
	create(t, c, "secrets", `{"metadata": {"name": "bound"}, "stringData": {"k": "2"}}`)
	becomes("UPDATE bound", "ConfigMap=1 Secret=2 ")
	patch(t, c, "secrets", "bound", `{"stringData": {"k": "3"}}`)
	becomes("UPDATE bound", "ConfigMap=1 Secret=3 ")
	// Deleting an object changes nothing of a pod that uses it; recreating it does.
	remove(t, c, "configmaps", "bound")
	create(t, c, "configmaps", `{"metadata": {"name": "bound"}, "data": {"k": "4"}}`)
	becomes("UPDATE bound", "ConfigMap=4 Secret=3 ")
}
