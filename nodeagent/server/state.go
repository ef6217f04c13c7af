package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	ktypes "k8s.io/kubelet/pkg/types"
)

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

func podList(n int) v1.PodList {
	return v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: make([]v1.Pod, 0, n)}
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	all := s.cfg.Pods.AllPods()
	l := podList(len(all))
	for _, p := range all {
		l.Items = append(l.Items, *p)
	}
	writeJSON(w, l)
}

// runningPods lists what the runtime runs, whatever the API says should run.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	list, err := s.cfg.Pods.Runtime().ListContainers(r.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	if err != nil {
		writeError(w, fmt.Errorf("list containers: %w", err))
		return
	}
	l := podList(0)
	at := map[types.UID]int{}
	for _, c := range list {
		uid := types.UID(c.Labels[ktypes.KubernetesPodUIDLabel])
		if uid == "" {
			continue
		}
		i, ok := at[uid]
		if !ok {
			i = len(l.Items)
			at[uid] = i
			l.Items = append(l.Items, v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid,
				Name: c.Labels[ktypes.KubernetesPodNameLabel], Namespace: c.Labels[ktypes.KubernetesPodNamespaceLabel]}})
		}
		l.Items[i].Spec.Containers = append(l.Items[i].Spec.Containers, v1.Container{Name: c.Labels[ktypes.KubernetesContainerNameLabel], Image: c.GetImage().GetImage()})
	}
	writeJSON(w, l)
}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	sum, err := s.cfg.Pods.Summary(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, sum)
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	if err := s.cfg.Healthy(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok"))
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"kubeletconfig": s.cfg.Configz()})
}
