package apiclient

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTrustBundles(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	block := func(der string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)}))
	}
	bundle := func(name, signer, text string) certificatesv1beta1.ClusterTrustBundle {
		return certificatesv1beta1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": strings.ReplaceAll(name, ":", "-")}},
			Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
		}
	}
	all := []certificatesv1beta1.ClusterTrustBundle{
		bundle("plain", "", "a comment\n"+block("b")+block("a")+block("b")),
		bundle("x:1", "example.com/x", block("c")), bundle("x:2", "example.com/x", block("b")+block("c")), bundle("y", "example.com/y", block("d")),
	}
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", jsonType)
		if plural(r) == "clustertrustbundles" {
			if got := r.URL.Query().Get("fieldSelector"); !strings.HasPrefix(got, "spec.signerName=example.com/") {
				t.Errorf("selector %q", got)
			}
			_, _ = w.Write(must(json.Marshal(certificatesv1beta1.ClusterTrustBundleList{Items: all})))
			return true
		}
		for _, b := range all {
			if r.URL.Path == "/apis/certificates.k8s.io/v1beta1/clustertrustbundles/"+b.Name {
				_, _ = w.Write(must(json.Marshal(b)))
				return true
			}
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	})
	text := func(s string) *string { return &s }
	yes, everything := true, &metav1.LabelSelector{}
	for title, c := range map[string]struct {
		of   v1.ClusterTrustBundleProjection
		want string // or of the error
	}{
		"by name":           {v1.ClusterTrustBundleProjection{Name: text("plain")}, block("a") + block("b")},
		"by a signer's":     {v1.ClusterTrustBundleProjection{Name: text("x:1")}, block("c")},
		"missing":           {v1.ClusterTrustBundleProjection{Name: text("none")}, "cannot read cluster trust bundle none: not found"},
		"missing, optional": {v1.ClusterTrustBundleProjection{Name: text("none"), Optional: &yes}, ""},
		"a path":            {v1.ClusterTrustBundleProjection{Name: text("../x")}, `"../x" is not a valid cluster trust bundle name`},
		"signer":            {v1.ClusterTrustBundleProjection{SignerName: text("example.com/x"), LabelSelector: everything}, block("b") + block("c")},
		"labels":            {v1.ClusterTrustBundleProjection{SignerName: text("example.com/x"), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "x-1"}}}, block("c")},
		"no labels":         {v1.ClusterTrustBundleProjection{SignerName: text("example.com/x")}, `no cluster trust bundle of signer "example.com/x" matches`},
		"no labels, may":    {v1.ClusterTrustBundleProjection{SignerName: text("example.com/x"), Optional: &yes}, ""},
		"neither":           {v1.ClusterTrustBundleProjection{}, "a clusterTrustBundle needs a name or a signerName"},
		"wrong selector": {v1.ClusterTrustBundleProjection{SignerName: text("example.com/x"), LabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}},
		}}, "label selector of a cluster trust bundle"},
	} {
		got, err := src.TrustBundle(t.Context(), &c.of)
		if err != nil {
			if got != "" || c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %q, %v", title, got, err)
			}
		} else if got != c.want {
			t.Errorf("%s: %q, want %q", title, got, c.want)
		}
	}
}
