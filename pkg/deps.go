//go:build deps

// Package pkg holds requirements of what is being written; it goes before the work lands.
package pkg

import (
	_ "github.com/gorilla/websocket"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/common/expfmt"
	_ "k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/tools/portforward"
	_ "k8s.io/client-go/tools/record"
	_ "k8s.io/client-go/tools/remotecommand"
	_ "k8s.io/client-go/util/certificate"
	_ "k8s.io/cri-streaming/pkg/streaming"
	_ "k8s.io/kubelet/config/v1beta1"
	_ "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	_ "k8s.io/kubectl/pkg/cmd/get"
	_ "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	_ "k8s.io/streaming/pkg/httpstream"
)
