package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// orphanPrefix marks the queue keys of orphan jobs; the rest is the UID.
const orphanPrefix = "orphan/"

// poll is how long a job waits for the first lists.
const poll = 250 * time.Millisecond

type controller struct {
	client   metadata.Interface
	graph    *graph
	monitors *monitors
	queue    runtime.Queue
	log      *slog.Logger
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue, client metadata.Interface, disco discovery.DiscoveryInterface) (runtime.Controller, error) {
	c := &controller{client: client, graph: newGraph(), queue: q, log: d.Log}
	c.monitors = newMonitors(client, disco, c.graph, c.enqueue, d.Log)
	return runtime.Controller{
		Workers:    20,
		Reconcile:  c.reconcile,
		Background: []func(context.Context) error{c.monitors.run},
	}, nil
}

func (c *controller) enqueue(jobs []job) {
	for _, j := range jobs {
		if j.orphan {
			c.queue.Add(orphanPrefix + string(j.uid))
		} else {
			c.queue.Add(string(j.uid))
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.monitors.synced() {
		return poll, nil
	}
	uid, orphan := strings.CutPrefix(key, orphanPrefix)
	o, ok := c.graph.get(types.UID(uid))
	switch {
	case !ok:
		return 0, nil
	case orphan:
		return 0, c.orphan(ctx, o)
	case o.foreground:
		return 0, c.finishForeground(ctx, o)
	case o.deleting:
		return 0, nil // it is on its way already
	}
	return 0, c.collect(ctx, o)
}

func (c *controller) api(r schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	if namespace == "" {
		return c.client.Resource(r)
	}
	return c.client.Resource(r).Namespace(namespace)
}

func describe(o object) string {
	return fmt.Sprintf("%s %s/%s", o.kind.Kind, o.namespace, o.name)
}

// live reads the object from the API server. When it is gone, the graph is told
// and ok is false.
func (c *controller) live(ctx context.Context, o object) (meta *metav1.PartialObjectMetadata, ok bool, err error) {
	meta, err = c.api(o.resource, o.namespace).Get(ctx, o.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && meta.UID != o.uid) {
		c.enqueue(c.graph.remove(o.uid))
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", describe(o), err)
	}
	return meta, true, nil
}

// owners are an object's owner references by how the owners are.
type owners struct{ alive, absent, waiting []metav1.OwnerReference }

// collect deletes o if it has owners and none of them lives.
func (c *controller) collect(ctx context.Context, o object) error {
	if len(o.owners) == 0 || c.allAlive(o) {
		return nil
	}
	meta, ok, err := c.live(ctx, o)
	if err != nil || !ok || len(meta.OwnerReferences) == 0 || meta.DeletionTimestamp != nil {
		return err
	}
	by, err := c.classify(ctx, o, meta.OwnerReferences)
	if err != nil {
		return err
	}
	switch {
	case len(by.alive) > 0:
		if len(by.absent)+len(by.waiting) == 0 {
			return nil
		}
		c.log.Info("owners are gone, others live", "object", describe(o), "gone", len(by.absent), "waiting", len(by.waiting), "alive", len(by.alive))
		return c.setOwners(ctx, o, meta, by.alive)
	case len(by.waiting) > 0 && len(c.graph.dependents(o.uid)) > 0:
		// Foreground goes down the tree. A circle would wait for itself: cut it.
		if slices.ContainsFunc(c.graph.dependents(o.uid), func(d object) bool { return d.foreground }) {
			refs := slices.Clone(meta.OwnerReferences)
			for i := range refs {
				refs[i].BlockOwnerDeletion = nil
			}
			if err := c.setOwners(ctx, o, meta, refs); err != nil {
				return err
			}
			meta, ok, err = c.live(ctx, o)
			if err != nil || !ok {
				return err
			}
		}
		return c.delete(ctx, o, meta, metav1.DeletePropagationForeground)
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case slices.Contains(meta.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(meta.Finalizers, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return c.delete(ctx, o, meta, policy)
}

// allAlive spares the API server when the graph holds all owners, living.
func (c *controller) allAlive(o object) bool {
	return !slices.ContainsFunc(o.owners, func(ref metav1.OwnerReference) bool {
		return c.graph.owner(o.namespace, ref) != alive
	})
}

func (c *controller) classify(ctx context.Context, o object, refs []metav1.OwnerReference) (owners, error) {
	var by owners
	for _, ref := range refs {
		state := c.graph.owner(o.namespace, ref)
		if state == unknown {
			var err error
			if state, err = c.ask(ctx, o, ref); err != nil {
				return by, err
			}
		}
		switch state {
		case absent:
			by.absent = append(by.absent, ref)
		case waiting:
			by.waiting = append(by.waiting, ref)
		default:
			by.alive = append(by.alive, ref)
		}
	}
	return by, nil
}

// ask reads an owner of o from the API server.
func (c *controller) ask(ctx context.Context, o object, ref metav1.OwnerReference) (ownerState, error) {
	r, ok := c.monitors.lookUp(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	if !ok {
		c.monitors.rediscover()
		return unknown, runtime.Silent(fmt.Errorf("owner of %s: the API does not serve %s %s", describe(o), ref.APIVersion, ref.Kind))
	}
	namespace := ""
	if r.namespaced {
		if o.namespace == "" {
			return alive, nil // cannot be resolved, so cannot be known to be absent
		}
		namespace = o.namespace
	}
	meta, err := c.api(r.name, namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return absent, nil
	case err != nil:
		return unknown, fmt.Errorf("read owner %s %s of %s: %w", ref.Kind, ref.Name, describe(o), err)
	case meta.UID != ref.UID:
		return absent, nil
	case meta.DeletionTimestamp != nil && slices.Contains(meta.Finalizers, metav1.FinalizerDeleteDependents):
		return waiting, nil
	}
	return alive, nil
}

func (c *controller) delete(ctx context.Context, o object, meta *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	err := c.api(o.resource, o.namespace).Delete(ctx, o.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &meta.UID, ResourceVersion: &meta.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		c.enqueue(c.graph.remove(o.uid))
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete %s, whose owners are gone: %w", describe(o), err)
	}
	c.log.Debug("deleted, its owners are gone", "object", describe(o), "policy", string(policy))
	return nil
}

// finishForeground ends the foreground deletion of o once nothing blocks it.
func (c *controller) finishForeground(ctx context.Context, o object) error {
	blocked := false
	for _, d := range c.graph.dependents(o.uid) {
		if !slices.ContainsFunc(d.owners, func(r metav1.OwnerReference) bool { return r.UID == o.uid && blocks(r) }) {
			continue
		}
		blocked = true
		if !d.deleting {
			c.enqueue([]job{{uid: d.uid}})
		}
	}
	if blocked {
		return nil // the last of them wakes us when it goes
	}
	return c.removeFinalizer(ctx, o, metav1.FinalizerDeleteDependents)
}

// orphan lets go of o's dependents, then of o.
func (c *controller) orphan(ctx context.Context, o object) error {
	if !o.orphan {
		return nil
	}
	deps := c.graph.dependents(o.uid)
	errs := make([]error, len(deps))
	runtime.Parallel(len(deps), 8, func(i int) {
		d := deps[i]
		meta, ok, err := c.live(ctx, d)
		if err != nil || !ok || !hasOwner(meta.OwnerReferences, o.uid) {
			errs[i] = err
			return
		}
		keep := slices.DeleteFunc(slices.Clone(meta.OwnerReferences), func(r metav1.OwnerReference) bool { return r.UID == o.uid })
		errs[i] = c.setOwners(ctx, d, meta, keep)
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.removeFinalizer(ctx, o, metav1.FinalizerOrphanDependents)
}

func (c *controller) removeFinalizer(ctx context.Context, o object, finalizer string) error {
	meta, ok, err := c.live(ctx, o)
	if err != nil || !ok || !slices.Contains(meta.Finalizers, finalizer) {
		return err
	}
	keep := slices.DeleteFunc(slices.Clone(meta.Finalizers), func(f string) bool { return f == finalizer })
	return c.patch(ctx, o, meta, map[string]any{"finalizers": keep})
}

func (c *controller) setOwners(ctx context.Context, o object, meta *metav1.PartialObjectMetadata, refs []metav1.OwnerReference) error {
	if refs == nil {
		refs = []metav1.OwnerReference{}
	}
	return c.patch(ctx, o, meta, map[string]any{"ownerReferences": refs})
}

// patch changes o's metadata, if it still is as meta was read.
func (c *controller) patch(ctx context.Context, o object, meta *metav1.PartialObjectMetadata, change map[string]any) error {
	change["uid"], change["resourceVersion"] = meta.UID, meta.ResourceVersion
	b, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return err
	}
	_, err = c.api(o.resource, o.namespace).Patch(ctx, o.name, types.MergePatchType, b, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		c.enqueue(c.graph.remove(o.uid))
		return nil
	}
	if err != nil {
		return fmt.Errorf("update metadata of %s: %w", describe(o), err)
	}
	return nil
}
