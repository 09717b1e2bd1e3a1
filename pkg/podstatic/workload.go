package podstatic

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	appsdefaults "k8s.io/kubernetes/pkg/apis/apps/v1"
	batchdefaults "k8s.io/kubernetes/pkg/apis/batch/v1"
)

// DefaultWorkload sets the defaults of an API server in a workload. It writes to it.
func DefaultWorkload(object any) {
	switch w := object.(type) {
	case *appsv1.Deployment:
		appsdefaults.SetObjectDefaults_Deployment(w)
	case *appsv1.ReplicaSet:
		appsdefaults.SetObjectDefaults_ReplicaSet(w)
	case *appsv1.StatefulSet:
		appsdefaults.SetObjectDefaults_StatefulSet(w)
	case *appsv1.DaemonSet:
		appsdefaults.SetObjectDefaults_DaemonSet(w)
	case *batchv1.Job:
		labels := w.Labels
		batchdefaults.SetObjectDefaults_Job(w)
		w.Labels = labels
	case *batchv1.CronJob:
		batchdefaults.SetObjectDefaults_CronJob(w)
	}
}
