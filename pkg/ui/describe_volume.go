package ui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

func (s *sheet) volumes(list []v1.Volume) {
	if len(list) == 0 {
		s.row(0, "Volumes:", "<none>")
		return
	}
	s.row(0, "Volumes:")
	for _, v := range list {
		s.row(1, v.Name+":")
		s.volume(v.VolumeSource)
	}
}

func (s *sheet) volume(v v1.VolumeSource) {
	optional := func(o *bool) string { return fmt.Sprint(o != nil && *o) }
	switch {
	case v.HostPath != nil:
		s.row(2, "Type:", "HostPath (bare host directory volume)")
		s.row(2, "Path:", v.HostPath.Path)
		kind := "<none>"
		if v.HostPath.Type != nil {
			kind = string(*v.HostPath.Type)
		}
		s.row(2, "HostPathType:", kind)
	case v.EmptyDir != nil:
		s.row(2, "Type:", "EmptyDir (a temporary directory that shares a pod's lifetime)")
		s.row(2, "Medium:", string(v.EmptyDir.Medium))
		limit := "<unset>"
		if l := v.EmptyDir.SizeLimit; l != nil && !l.IsZero() {
			limit = l.String()
		}
		s.row(2, "SizeLimit:", limit)
	case v.Secret != nil:
		s.row(2, "Type:", "Secret (a volume populated by a Secret)")
		s.row(2, "SecretName:", v.Secret.SecretName)
		s.row(2, "Optional:", optional(v.Secret.Optional))
	case v.ConfigMap != nil:
		s.row(2, "Type:", "ConfigMap (a volume populated by a ConfigMap)")
		s.row(2, "Name:", v.ConfigMap.Name)
		s.row(2, "Optional:", optional(v.ConfigMap.Optional))
	case v.PersistentVolumeClaim != nil:
		s.row(2, "Type:", "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)")
		s.row(2, "ClaimName:", v.PersistentVolumeClaim.ClaimName)
		s.row(2, "ReadOnly:", fmt.Sprint(v.PersistentVolumeClaim.ReadOnly))
	case v.DownwardAPI != nil:
		s.row(2, "Type:", "DownwardAPI (a volume populated by information about the pod)")
		s.row(2, "Items:")
		s.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		s.projected(v.Projected)
	case v.Image != nil:
		s.row(2, "Type:", "Image (a container image or OCI artifact)")
		s.row(2, "Reference:", v.Image.Reference)
		s.row(2, "PullPolicy:", string(v.Image.PullPolicy))
	default:
		s.row(2, "Type:", sourceName(v))
	}
}

func (s *sheet) projected(p *v1.ProjectedVolumeSource) {
	s.row(2, "Type:", "Projected (a volume that contains injected data from multiple sources)")
	for _, it := range p.Sources {
		switch {
		case it.Secret != nil:
			s.row(2, "SecretName:", it.Secret.Name)
			s.row(2, "Optional:", fmt.Sprint(it.Secret.Optional != nil && *it.Secret.Optional))
		case it.ConfigMap != nil:
			s.row(2, "ConfigMapName:", it.ConfigMap.Name)
			s.row(2, "Optional:", fmt.Sprint(it.ConfigMap.Optional != nil && *it.ConfigMap.Optional))
		case it.DownwardAPI != nil:
			s.row(2, "DownwardAPI:", "true")
			s.downward(it.DownwardAPI.Items)
		case it.ServiceAccountToken != nil:
			seconds := int64(3600)
			if e := it.ServiceAccountToken.ExpirationSeconds; e != nil {
				seconds = *e
			}
			s.row(2, "TokenExpirationSeconds:", fmt.Sprint(seconds))
		case it.ClusterTrustBundle != nil:
			name := cmp.Or(it.ClusterTrustBundle.Name, it.ClusterTrustBundle.SignerName)
			text := ""
			if name != nil {
				text = *name
			}
			s.row(2, "ClusterTrustBundle:", text)
		}
	}
}

func (s *sheet) downward(items []v1.DownwardAPIVolumeFile) {
	for _, it := range items {
		switch {
		case it.FieldRef != nil:
			s.row(3, it.FieldRef.FieldPath+" -> "+it.Path)
		case it.ResourceFieldRef != nil:
			s.row(3, it.ResourceFieldRef.Resource+" -> "+it.Path)
		}
	}
}

// sourceName returns the field name of a volume source that volume does not describe.
func sourceName(v v1.VolumeSource) string {
	data, err := json.Marshal(v)
	if err != nil {
		return "<unknown>"
	}
	var kinds map[string]json.RawMessage
	if err := json.Unmarshal(data, &kinds); err != nil || len(kinds) == 0 {
		return "<unknown>"
	}
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	return slices.Min(names)
}
