// Package pods is the state machine of a pod's life on a node.
//
// Step is pure: from what is wanted (the pod, or its end), what the runtime
// reports (sandboxes and containers), and what the agent remembers (probe
// results, holds, operations under way) it names exactly one transition. The
// caller carries it out, looks again, and asks for the next. Whatever happens
// in between, a crash of the agent included, the next Step goes on from what
// is there; all memory in Input may be lost at any point and the machine still
// converges, at worst with a fresh grace period or a shorter back-off.
//
// Duties of the caller:
//   - Observed is complete and at least as new as the last action's end.
//   - an action that takes long runs aside, and is in Starting, Pulling or
//     Stopping until it is over;
//   - a step is taken anew whenever something in Input may have changed, and at
//     Action.Until.
package pods

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// State of a container as the runtime reports it.
type State int

// The states. Unknown is a container whose process the runtime lost sight of.
const (
	Created State = iota
	Running
	Exited
	Unknown
)

func (s State) String() string {
	return [...]string{"created", "running", "exited", "unknown"}[s]
}

// Sandbox is one pod sandbox as the runtime reports it.
type Sandbox struct {
	ID        string
	Ready     bool
	Attempt   uint32
	CreatedAt time.Time
	IPs       []string // empty on the host's network
}

// Container is one instance of a container as the runtime reports it.
type Container struct {
	ID         string
	SandboxID  string
	Name       string
	State      State
	Attempt    int // the restart count
	CreatedAt  time.Time
	StartedAt  time.Time // zero if it never ran
	FinishedAt time.Time // zero while it has not ended
	ExitCode   int32
	Reason     string
	Message    string // termination message, or the runtime's
	Image      string // as the spec names it
	ImageID    string
	ImageRef   string
	Hash       string // SpecHash it was made with
	Grace      int64  // seconds, from the pod it was made for
	LogPath    string
}

// Observed is what the runtime holds of one pod.
type Observed struct {
	Sandboxes  []Sandbox   // newest first
	Containers []Container // newest first
}

// Newest returns the newest instance of a container, in any sandbox.
func (o Observed) Newest(name string) *Container {
	for i := range o.Containers {
		if o.Containers[i].Name == name {
			return &o.Containers[i]
		}
	}
	return nil
}

// In returns the newest instance of a container in one sandbox.
func (o Observed) In(sandbox, name string) *Container {
	for i := range o.Containers {
		if c := &o.Containers[i]; c.Name == name && c.SandboxID == sandbox {
			return c
		}
	}
	return nil
}

// ReadySandbox returns the newest sandbox that is ready.
func (o Observed) ReadySandbox() *Sandbox {
	for i := range o.Sandboxes {
		if o.Sandboxes[i].Ready {
			return &o.Sandboxes[i]
		}
	}
	return nil
}

// Live returns whether any container may still have a process.
func (o Observed) Live() bool {
	for _, c := range o.Containers {
		if c.State != Exited && c.State != Created {
			return true
		}
	}
	return false
}

// Stop asks for the end of a pod.
type Stop struct {
	Since   time.Time
	Grace   time.Duration // from Since; at least a second is given
	Reason  string        // of the pod's failure; empty for a deletion
	Message string
}

// Probe is what the probes of one container instance say.
type Probe struct {
	LivenessFailed bool
	StartupFailed  bool
	Started        bool // no startup probe, or it succeeded
	// Grace replaces the pod's grace when a failed probe kills, if not nil.
	Grace   *int64 // seconds
	Message string
}

// Hold keeps a container from being started for a while after a failure.
type Hold struct {
	Until   time.Time
	Reason  string // waiting reason: ErrImagePull, CreateContainerConfigError…
	Message string
}

// Crash is the back-off of one container: the delay the next restart has
// after a crash, and the crash that set it.
type Crash struct {
	Delay time.Duration
	At    time.Time
}

// Input is all that Step looks at.
type Input struct {
	Pod  *v1.Pod // nil for containers whose pod is not known any more
	Gone bool    // the API has no such pod (any more)
	Now  time.Time
	Observed
	Stop *Stop

	Prepared      bool // volumes, directories and cgroup are there
	PrepareAfter  time.Time
	SandboxAfter  time.Time
	SandboxFailed int             // sandboxes that could not be made, since the last one that could
	StoppedBoxes  map[string]bool // sandboxes, by ID, whose network was taken down
	ImageReady    map[string]bool // by container name: checked or pulled for the next start
	Pulling       map[string]bool // by container name
	Starting      map[string]bool // by container name
	Stopping      map[string]time.Time
	Holds         map[string]Hold  // by container name
	Crashes       map[string]Crash // by container name
	Probes        map[string]Probe // by container ID
	Cleaned       bool             // volumes and cgroup are gone
	DeleteAfter   time.Time
}

// Kind names a transition.
type Kind int

// The transitions.
const (
	Wait             Kind = iota // nothing to do until Until or a change
	Prepare                      // volumes, directories, cgroup
	CreateSandbox                // with Attempt
	PullImage                    // check, or pull, the image of Container
	StartContainer               // create and start Container in SandboxID, with Attempt
	StopContainers               // those in Stops, at the same time
	StopSandbox                  // SandboxID
	RemoveContainers             // those in IDs, none of which has a process
	RemoveSandbox                // SandboxID
	Cleanup                      // unmount volumes, remove the cgroup
	Delete                       // delete the pod from the API, grace 0
	Finish                       // remove logs and directories; the worker ends
)

func (k Kind) String() string {
	return [...]string{"wait", "prepare", "create sandbox", "pull image", "start container", "stop containers", "stop sandbox",
		"remove containers", "remove sandbox", "clean up", "delete", "finish"}[k]
}

// StopOne is one container to stop.
type StopOne struct {
	ID      string
	Name    string
	Grace   time.Duration
	Reason  string // of the Killing event
	Hook    bool   // run its preStop hook first
	Restart bool   // it is stopped to be started again
}

// Action is one transition with its arguments.
type Action struct {
	Kind      Kind
	Container string
	SandboxID string
	Attempt   int
	Crash     *Crash // to remember when StartContainer restarts
	Stops     []StopOne
	IDs       []string
	Until     time.Time // for Wait; zero: until something changes
}

// Decision is Step's answer: the transition, and why containers that do not
// run are waiting, for the status.
type Decision struct {
	Action
	Waiting map[string]Hold // by container name; Until is not used
	// Done says that no container will be started any more.
	Done bool
}
