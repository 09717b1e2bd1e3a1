package apiclient

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TrustBundle returns the certificates of the bundle that of names, or of all those
// of its signer that its labels select, as PEM, each once. It is "" for one that is
// optional and not there.
func (r *Reader) TrustBundle(ctx context.Context, of *v1.ClusterTrustBundleProjection) (string, error) {
	var bundles []certificatesv1beta1.ClusterTrustBundle
	var err error
	switch {
	case of.Name != nil:
		bundles, err = r.bundle(ctx, *of.Name)
	case of.SignerName != nil:
		bundles, err = r.bundlesOf(ctx, *of.SignerName, of.LabelSelector)
	default:
		err = errors.New("a clusterTrustBundle needs a name or a signerName")
	}
	if isStatus(err, http.StatusNotFound) && of.Optional != nil && *of.Optional {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if len(bundles) == 0 && (of.Optional == nil || !*of.Optional) {
		return "", fmt.Errorf("no cluster trust bundle of signer %q matches", *of.SignerName)
	}
	anchors := map[string]bool{}
	for i := range bundles {
		for block, rest := pem.Decode([]byte(bundles[i].Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
			anchors[string(block.Bytes)] = true
		}
	}
	var b strings.Builder
	for _, der := range slices.Sorted(maps.Keys(anchors)) {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)}))
	}
	return b.String(), nil
}

func trustBundles(below ...string) []string {
	return append([]string{"apis", "certificates.k8s.io", "v1beta1", "clustertrustbundles"}, below...)
}

// bundle returns the bundle called name.
func (r *Reader) bundle(ctx context.Context, name string) ([]certificatesv1beta1.ClusterTrustBundle, error) {
	if plain := strings.ReplaceAll(name, ":", "."); len(validation.IsDNS1123Subdomain(plain)) > 0 {
		return nil, fmt.Errorf("%q is not a valid cluster trust bundle name", name)
	}
	one := make([]certificatesv1beta1.ClusterTrustBundle, 1)
	err := r.fetch(ctx, request{method: http.MethodGet, path: trustBundles(name), purpose: "read cluster trust bundle " + name}, &one[0])
	return one, err
}

// bundlesOf returns the bundles of a signer; no selector selects none (as the
// kubelet has it).
func (r *Reader) bundlesOf(ctx context.Context, signer string, of *metav1.LabelSelector) ([]certificatesv1beta1.ClusterTrustBundle, error) {
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return nil, fmt.Errorf("label selector of a cluster trust bundle: %w", err)
	}
	var all certificatesv1beta1.ClusterTrustBundleList
	err = r.fetch(ctx, request{
		method: http.MethodGet, path: trustBundles(), purpose: "read cluster trust bundles",
		query: url.Values{"fieldSelector": {fields.OneTermEqualSelector("spec.signerName", signer).String()}},
	}, &all)
	return slices.DeleteFunc(all.Items, func(b certificatesv1beta1.ClusterTrustBundle) bool {
		return b.Spec.SignerName != signer || !selector.Matches(labels.Set(b.Labels))
	}), err
}
