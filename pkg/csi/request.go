package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
)

// capability returns the CSI description of the pod's use of the volume.
func (o *operation) capability() *csipb.VolumeCapability {
	if o.user.block {
		return &csipb.VolumeCapability{
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: o.abilities.accessMode(o.source.modes)},
			AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
		}
	}
	m := &csipb.VolumeCapability_MountVolume{FsType: o.source.fsType, MountFlags: o.source.options}
	if o.label != "" {
		m.MountFlags = append(slices.Clone(m.MountFlags), fmt.Sprintf("context=%q", o.label))
	}
	if g := o.group(); g != nil && o.abilities.mountsGroup {
		m.VolumeMountGroup = fmt.Sprint(*g)
	}
	return &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: o.abilities.accessMode(o.source.modes)},
		AccessType: &csipb.VolumeCapability_Mount{Mount: m},
	}
}

// secrets returns the content of a Secret for a driver. A ref of nil names no Secret. Logs never have the
// content.
func (o *operation) secrets(ctx context.Context, field string, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return map[string]string{}, nil
	}
	all, err := o.cluster.API.SecretData(ctx, ref.Namespace, ref.Name)
	if err == nil && all == nil {
		err = errors.New("not found")
	}
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: %w", field, ref.Namespace, ref.Name, err)
	}
	return all, nil
}

// publishContext is the attacher's data for the node.
func (o *operation) publishContext() map[string]string {
	if o.attachment == nil {
		return nil
	}
	return o.attachment.Status.AttachmentMetadata
}

// podContext returns the attributes of the volume. It adds attributes and tokens of the pod if the
// CSIDriver object requests them. Depending on that object, it adds the tokens to secrets instead.
func (o *operation) podContext(ctx context.Context, secrets map[string]string) (map[string]string, error) {
	all := maps.Clone(o.source.attributes)
	if o.object == nil {
		return all, nil
	}
	if all == nil {
		all = make(map[string]string)
	}
	p := o.request.Want.Pod
	if i := o.object.Spec.PodInfoOnMount; i != nil && *i {
		maps.Copy(all, map[string]string{
			"csi.storage.k8s.io/pod.name":            p.Name,
			"csi.storage.k8s.io/pod.namespace":       p.Namespace,
			"csi.storage.k8s.io/pod.uid":             string(p.UID),
			"csi.storage.k8s.io/serviceAccount.name": p.Spec.ServiceAccountName,
			"csi.storage.k8s.io/ephemeral":           fmt.Sprint(o.source.lifecycle == ephemeral),
		})
	}
	if len(o.object.Spec.TokenRequests) == 0 || o.user.block { // the kubelet's rule
		return all, nil
	}
	tokens := make(map[string]authenticationv1.TokenRequestStatus)
	for _, r := range o.object.Spec.TokenRequests {
		token, renew, err := o.cluster.API.TokenStatus(ctx, o.request.Want, &v1.ServiceAccountTokenProjection{Audience: r.Audience, ExpirationSeconds: r.ExpirationSeconds})
		if err != nil {
			return nil, fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: %w", err)
		}
		if o.renew.IsZero() || renew.Before(o.renew) {
			o.renew = renew
		}
		tokens[r.Audience] = token
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return nil, errors.New("cannot encode the tokens")
	}
	to := all
	if in := o.object.Spec.ServiceAccountTokenInSecrets; in != nil && *in {
		to = secrets
	}
	to["csi.storage.k8s.io/serviceAccount.tokens"] = string(text)
	return all, nil
}
