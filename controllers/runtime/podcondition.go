package runtime

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// SetPodCondition writes one condition of exactly this pod, with its generation as the one observed. It returns false
// without an error when the pod is gone, or another one has its name by now.
func SetPodCondition(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, c corev1.PodCondition) (there bool, err error) {
	c.ObservedGeneration = pod.Generation
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{c}},
	})
	if err != nil {
		return false, fmt.Errorf("encode condition %s of pod %s/%s: %w", c.Type, pod.Namespace, pod.Name, err)
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("set condition %s of pod %s/%s: %w", c.Type, pod.Namespace, pod.Name, err)
	}
	return true, nil
}
