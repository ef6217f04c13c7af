package persistentvolume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// explain says what a claim waits for.
func (c *controller) explain(namespace, name string) ([]runtime.Wait, error) {
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	waits := runtime.DeletionWaits(claim)
	if claim.DeletionTimestamp != nil {
		for _, pod := range c.pods.Naming(namespace, name) {
			waits = append(waits, runtime.Wait{For: fmt.Sprintf("pod %s, which uses it, to go first", pod.Name), By: "controller persistentvolumeclaimprotection"})
		}
	}
	s, err := c.surroundings(claim)
	if err != nil {
		return waits, err
	}
	step := decideClaim(claim, s)
	switch {
	case step.waits != "":
		by := "controller persistentvolume"
		switch {
		case step.provision != nil:
			by = "provisioner " + provisionerName(step.provision)
		case step.notice != nil && step.notice.reason == "WaitForPodScheduled":
			by = "scheduler"
		}
		waits = append(waits, runtime.Wait{For: step.waits, By: by})
	case claim.Status.Phase != corev1.ClaimBound:
		waits = append(waits, runtime.Wait{For: "its binding to be written", By: "controller persistentvolume"})
	}
	for _, cond := range claim.Status.Conditions {
		switch cond.Type {
		case corev1.PersistentVolumeClaimResizing:
			waits = append(waits, runtime.Wait{For: "its volume to grow " + cond.Message, By: "resizer of its driver"})
		case corev1.PersistentVolumeClaimFileSystemResizePending:
			waits = append(waits, runtime.Wait{For: "its file system to grow, when a pod uses it", By: "kubelet of the pod's node"})
		}
	}
	return waits, nil
}
