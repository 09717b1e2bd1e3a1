package podstatic

import (
	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
)

// DefaultClaim sets the API's defaults in a claim that a template makes.
func DefaultClaim(c *v1.PersistentVolumeClaim) { corev1.SetObjectDefaults_PersistentVolumeClaim(c) }
