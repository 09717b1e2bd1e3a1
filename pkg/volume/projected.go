package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// trustBundleAge is how old a trust bundle may be before it is read again: there is no
// notification of changes.
const trustBundleAge = time.Minute

// private is the mode of files that only one user of the pod may read. With an fsGroup, the
// group gets read permission, too.
const private = 0o600

// projected is a volume with files of several sources. If two sources have a file of the same
// path, the later one is used. If sources fail, the error names all failures.
func projected(v *v1.ProjectedVolumeSource) kind {
	return shown{dir: dirProjected, memory: true, files: func(ctx context.Context, s *setting) (files, error) {
		out := files{}
		var wrong []error
		for i := range v.Sources {
			part, err := s.source(ctx, &v.Sources[i], v.DefaultMode)
			if err != nil {
				wrong = append(wrong, err)
			}
			maps.Copy(out, part)
		}
		return out, utilerrors.NewAggregate(wrong)
	}}
}

// source returns the files of one source of a projected volume.
func (s *setting) source(ctx context.Context, p *v1.VolumeProjection, mode *int32) (files, error) {
	switch {
	case p.Secret != nil:
		return s.object("Secret", p.Secret.Name, p.Secret.Items, mode, p.Secret.Optional)
	case p.ConfigMap != nil:
		return s.object("ConfigMap", p.ConfigMap.Name, p.ConfigMap.Items, mode, p.ConfigMap.Optional)
	case p.DownwardAPI != nil:
		return s.fields(p.DownwardAPI.Items, mode)
	case p.ServiceAccountToken != nil:
		if s.cfg.Token == nil {
			return nil, errors.New("serviceAccountToken: there is no API server to ask for a token")
		}
		token, renew, err := s.cfg.Token(ctx, s.want, p.ServiceAccountToken)
		if err != nil {
			return nil, fmt.Errorf("serviceAccountToken: %w", err)
		}
		if !renew.IsZero() {
			s.renewAt(renew)
		}
		return s.owned(p.ServiceAccountToken.Path, token, mode), nil
	case p.ClusterTrustBundle != nil:
		if s.cfg.TrustBundle == nil {
			return nil, errors.New("clusterTrustBundle: there is no API server to ask for it")
		}
		bundle, err := s.cfg.TrustBundle(ctx, p.ClusterTrustBundle)
		if err != nil {
			return nil, fmt.Errorf("clusterTrustBundle: %w", err)
		}
		s.renewAt(time.Now().Add(trustBundleAge))
		return s.owned(p.ClusterTrustBundle.Path, bundle, mode), nil
	}
	return nil, errors.New("this kind of source is not supported")
}

// owned is a file that belongs to the pod's one user, if its containers agree on one, or to
// its group.
func (s *setting) owned(path, text string, mode *int32) files {
	f := file{data: []byte(text), mode: modeOf(mode), owner: runAsUser(s.want.Pod)}
	if f.owner != nil || s.group() != nil {
		f.mode = fs.FileMode(private)
	}
	return files{path: f}
}

// runAsUser is the user that every container of the pod runs as, nil if they differ or one
// has none.
func runAsUser(p *v1.Pod) *int64 {
	var user *int64
	agree := true
	containers(p, func(c *v1.Container) {
		var own *int64
		if p.Spec.SecurityContext != nil {
			own = p.Spec.SecurityContext.RunAsUser
		}
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			own = c.SecurityContext.RunAsUser
		}
		agree = agree && own != nil && (user == nil || *user == *own)
		user = own
	})
	if !agree {
		return nil
	}
	return user
}
