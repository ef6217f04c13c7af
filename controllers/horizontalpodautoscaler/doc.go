// Package horizontalpodautoscaler sizes workloads by metrics.
//
// Reads HorizontalPodAutoscalers, pods, metrics (the APIs metrics.k8s.io,
// custom.metrics.k8s.io and external.metrics.k8s.io) and the scale of the target;
// writes the scale and HorizontalPodAutoscaler status.
//
// A proposal is the size at which the metric would meet its target, as the API's
// documentation describes: ceil(current * metric / target), the largest of all
// metrics. Within the tolerance nothing is proposed. Stabilization windows and
// rate limits of the behavior are then applied, and the bounds last.
//
// Invariants: missing metrics never scale the wrong way. Pods without metrics
// count as using nothing when scaling up and all of their target when scaling
// down, pods that are not ready count as using nothing; when that turns the
// direction around the size stays. When a metric cannot be read at all the others
// may scale up, never down. After a start nothing is scaled down before its
// stabilization window has been watched for.
package horizontalpodautoscaler
