package server

import (
	"context"
	"net/http"
)

func (s *Server) images(w http.ResponseWriter, q *request) error {
	if s.cfg.Node == nil {
		return notImplemented(q)
	}
	images, err := s.cfg.Node.Images(q.Context())
	if err != nil {
		return err
	}
	if images == nil {
		images = []Image{}
	}
	return send(w, struct {
		Kind   string  `json:"kind"`
		Images []Image `json:"images"`
	}{"ImageList", images})
}

func (s *Server) pulls(w http.ResponseWriter, q *request) error {
	if s.cfg.Images == nil {
		return notImplemented(q)
	}
	pulls := s.cfg.Images.Pulls(q.Context())
	if pulls == nil {
		pulls = []ImagePull{}
	}
	return send(w, struct {
		Kind  string      `json:"kind"`
		Pulls []ImagePull `json:"pulls"`
	}{"PullList", pulls})
}

func (s *Server) pullImage(w http.ResponseWriter, q *request) error {
	if s.cfg.Images == nil {
		return notImplemented(q)
	}
	name, err := imageOf(q)
	if err != nil {
		return err
	}
	id, err := s.cfg.Images.PullImage(q.Context(), name)
	if err != nil {
		return err
	}
	return send(w, map[string]string{"id": id})
}

func (s *Server) removeImage(w http.ResponseWriter, q *request) error {
	if s.cfg.Images == nil {
		return notImplemented(q)
	}
	name, err := imageOf(q)
	if err != nil {
		return err
	}
	names, err := s.cfg.Images.RemoveImage(context.WithoutCancel(q.Context()), name)
	if err != nil {
		return err
	}
	return send(w, map[string][]string{"names": names})
}

func (s *Server) pruneImages(w http.ResponseWriter, q *request) error {
	if s.cfg.Images == nil {
		return notImplemented(q)
	}
	all, err := s.cfg.Images.PruneImages(q.Context(), isTrue(q.params.Get("dryRun")))
	if err != nil {
		return err
	}
	return send(w, all)
}

// imageOf returns the image that a request names.
func imageOf(q *request) (string, error) {
	if name := q.params.Get("name"); name != "" {
		return name, nil
	}
	return "", &StatusError{Code: http.StatusBadRequest, Message: "no image is named"}
}
