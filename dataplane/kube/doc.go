// Package kube fills the dataplane's model from the Kubernetes API: it watches Services and EndpointSlices, turns
// each Service into one model service for each port and IP family, and answers health check node ports.
//
// Not programmed: headless Services, ExternalName, Services labelled service.kubernetes.io/service-proxy-name
// (another proxy's), and load balancer addresses of IP mode Proxy.
package kube
