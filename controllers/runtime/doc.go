// Package runtime is the machine that every controller runs on.
//
// A controller is a name, the informers it reads, and one function
// Reconcile(ctx, key) that brings the object named by key closer to what is
// wanted. The machine owns the rest: the queue, the workers, retries with
// backoff, deadlines, supervision, health and metrics.
//
// # Supervision
//
// Controllers do not share fate. Each is built by its Builder, runs, and when
// it fails (a panic in Reconcile, in an event handler or in a background loop,
// or a Reconcile that does not return after its context ended) it alone is torn
// down and built anew after a backoff of 1 s to 1 min. A new instance starts
// with fresh memory and is told of every object again, so that a Builder must
// keep nothing outside the Controller it returns. A key whose Reconcile
// panicked is held back longer each time, so that one poisonous object does not
// stop the others.
//
// # Duties of a controller
//
// Reconcile is never called twice at once for one key. It must take every API
// call through the context it was given: that is what makes it safe to replace
// an instance that hangs, for a cancelled context can no longer write. It reads
// caches, which lag: what it creates with generated names must be remembered in
// Expectations until the cache has seen it. Objects read from a cache are
// shared and must be copied before they are changed. A reconcile that has
// nothing to change writes nothing.
package runtime
