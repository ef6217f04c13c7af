package nodeagent

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/nodeagent/probes"
)

// component is who tells the events. Kubernetes' own name for the node's
// agent, so that what looks for a pod's events by their source finds them.
const component = "kubelet"

func (a *Agent) startEvents() (stop func()) {
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: a.cfg.Client.CoreV1().Events("")})
	a.events = b.NewRecorder(scheme.Scheme, v1.EventSource{Component: component, Host: a.cfg.NodeName})
	return b.Shutdown
}

func (a *Agent) event(pod *v1.Pod, kind, reason, message string) {
	if pod != nil {
		a.events.Event(pod, kind, reason, message)
	}
}

func (a *Agent) unhealthy(pod *v1.Pod, _ string, k probes.Kind, message string) {
	a.event(pod, v1.EventTypeWarning, "Unhealthy", k.String()+" probe failed: "+message)
}

func (a *Agent) imported(string, []string) {
	a.everyWorker((*worker).imagesArrived)
	a.node.Kick()
}

func (a *Agent) importFailed(path string, err error) {
	a.events.Event(a.node.Ref(), v1.EventTypeWarning, "ImageImportFailed", "image archive "+path+" was not imported, replace it to try again: "+err.Error())
}
