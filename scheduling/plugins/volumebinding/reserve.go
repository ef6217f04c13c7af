package volumebinding

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// reservation holds what was found for the pod's claims.
type reservation struct {
	node    string
	found   []found
	objects plugin.Objects
	timeout time.Duration
}

// Reserve holds the volumes that were found for the node.
func (f Plugin) Reserve(p *cluster.Pod, n *cluster.Node, o plugin.Objects) (plugin.Reservation, error) {
	if len(p.Claims) == 0 {
		return nil, nil
	}
	need, text := read(p.Pod, o)
	if text != "" {
		return nil, errors.New(text)
	}
	got, r := need.find(n, o)
	if r != nil {
		return nil, errors.New(r.Texts[0])
	}
	if len(got) == 0 {
		return nil, nil
	}
	held := o.Held()
	for _, g := range got {
		key := g.claim.Namespace + "/" + g.claim.Name
		if g.volume != nil {
			held.Volumes[g.volume.Name] = key
		} else {
			held.Claims[key] = n.Name
		}
	}
	return &reservation{node: n.Name, found: got, objects: o, timeout: time.Duration(f.Timeout) * time.Second}, nil
}

// Release lets go of what was held.
func (r *reservation) Release() {
	held := r.objects.Held()
	for _, g := range r.found {
		if g.volume != nil {
			delete(held.Volumes, g.volume.Name)
		} else {
			delete(held.Claims, g.claim.Namespace+"/"+g.claim.Name)
		}
	}
}

// Commit binds the volumes, asks for those that are to be provisioned, and waits
// until all claims are bound.
func (r *reservation) Commit(ctx context.Context, client kubernetes.Interface) error {
	for _, g := range r.found {
		var err error
		if g.volume != nil {
			err = bind(ctx, client, g)
		} else {
			err = r.provision(ctx, client, g)
		}
		if err != nil {
			return err
		}
	}
	last, asked := "", map[types.UID]bool{}
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, r.timeout, true, func(context.Context) (bool, error) {
		for _, g := range r.found {
			c := r.objects.Claim(g.claim.Namespace, g.claim.Name)
			switch {
			case c == nil || c.UID != g.claim.UID:
				return false, fmt.Errorf("persistentvolumeclaim %s/%s is gone", g.claim.Namespace, g.claim.Name)
			case isBound(c):
				continue
			case g.volume == nil && c.Annotations[volume.AnnSelectedNode] == r.node:
				asked[c.UID] = true
			case asked[c.UID]:
				// The provisioner takes it off again when the node has no room.
				return false, fmt.Errorf("provisioning for persistentvolumeclaim %s/%s failed on node %s", c.Namespace, c.Name, r.node)
			}
			last = c.Namespace + "/" + c.Name
			return false, nil
		}
		return true, nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("persistentvolumeclaim %s is not bound yet after %v", last, r.timeout)
	}
	return err
}

func bind(ctx context.Context, client kubernetes.Interface, g found) error {
	pv, dirty, err := volume.GetBindVolumeToClaim(g.volume, g.claim)
	if err != nil {
		return fmt.Errorf("bind persistentvolume %s: %w", g.volume.Name, err)
	}
	if !dirty {
		return nil
	}
	if _, err := client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("bind persistentvolume %s: %w", pv.Name, err)
	}
	return nil
}

func (r *reservation) provision(ctx context.Context, client kubernetes.Interface, g found) error {
	if g.claim.Annotations[volume.AnnSelectedNode] == r.node {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, g.claim.UID, volume.AnnSelectedNode, r.node)
	_, err := client.CoreV1().PersistentVolumeClaims(g.claim.Namespace).Patch(ctx, g.claim.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("select node %s for persistentvolumeclaim %s/%s: %w", r.node, g.claim.Namespace, g.claim.Name, err)
	}
	return nil
}
