package config

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// TestC_1_40_Configz: /configz has a KubeletConfiguration that its readers can decode, with
// the current values and no header.
//
// Shows: C-1.40
func TestC_1_40_Configz(t *testing.T) {
	t.Parallel()
	c := Default()
	c.MaxPods, c.SystemReserved, c.ManifestURLHeader = 42, []string{"cpu=500m"}, []string{"Authorization: canary"}
	c.VolumeHealth, c.DisabledFeatures = true, []string{"NodeDeclaredFeatures", "PodLevelResources"}
	c.TokenCacheTTL, c.UnauthorizedCacheTTL = 10*time.Second, time.Second
	c.ClusterDNS, c.NodeLeaseDuration = []string{"10.96.0.10"}, 40*time.Second
	c.Filename, c.MaxParallelImagePulls = []string{"https://me:canary@h/pods", "/etc/manifests"}, 5
	text, err := json.Marshal(c.Kubelet())
	if err != nil {
		t.Fatal(err)
	}
	var is kubeletv1beta1.KubeletConfiguration
	if err := json.Unmarshal(text, &is); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if is.Kind != "KubeletConfiguration" || is.MaxPods != 42 || is.SystemReserved["cpu"] != "500m" || is.ClusterDNS[0] != "10.96.0.10" ||
		is.NodeLeaseDurationSeconds != 40 || is.SyncFrequency.Duration != time.Minute || is.EvictionHard["memory.available"] != "100Mi" ||
		is.Authentication.Webhook.CacheTTL.Duration != 10*time.Second || is.Authorization.Webhook.CacheAuthorizedTTL.Duration != 5*time.Minute ||
		is.Authorization.Webhook.CacheUnauthorizedTTL.Duration != time.Second ||
		!maps.Equal(is.FeatureGates, map[string]bool{"CSIVolumeHealth": true, "NodeDeclaredFeatures": false, "PodLevelResources": false}) ||
		is.StaticPodPath != "/etc/manifests" || *is.SerializeImagePulls || *is.MaxParallelImagePulls != 5 || !*is.CgroupsPerQOS ||
		is.Authentication.Anonymous.Enabled == nil || *is.Authentication.Anonymous.Enabled {
		t.Errorf("%s", text)
	}
	if len(is.StaticPodURLHeader) > 0 || is.StaticPodURL != "" {
		t.Errorf("the configuration shows URLs of manifests or their headers: %s", text)
	}
}
