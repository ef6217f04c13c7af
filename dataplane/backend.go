package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Backend brings the kernel in line with services. One caller at a time. A method that returns nil has put what it
// was asked for into the kernel; after an error the kernel may hold a part of it, and the caller repeats the call or
// calls Sync.
type Backend interface {
	// Name is the mode's name, as the configuration spells it.
	Name() string
	// Update adds services or replaces earlier versions of them. It costs what changed, not what exists.
	Update(ctx context.Context, services []*Service) error
	// Delete removes services and everything the backend made for them. Unknown IDs are no error.
	Delete(ctx context.Context, ids []ID) error
	// Sync makes all the whole set: reads the kernel, repairs what differs, prunes what is not in all. What is right
	// already is not written again (counters and connections live on).
	Sync(ctx context.Context, all []*Service) error
	// Cleanup removes everything this backend has in the kernel, also what an earlier process left.
	Cleanup(ctx context.Context) error
	// Close releases sockets; the kernel's state stays.
	Close() error
}

// Maintainer is a Backend with work of its own to do later (draining, addresses of the node that come and go).
type Maintainer interface {
	// Maintain does what is due and returns when to call again; 0: not before the next Update, Delete or Sync.
	Maintain(ctx context.Context) (next time.Duration, err error)
	// Changed delivers when something outside changed that Maintain should look at. May be nil.
	Changed() <-chan struct{}
}

// RuleCounter is a Backend that can say how many kernel objects (rules, virtual servers) it keeps.
type RuleCounter interface{ Rules() int }

// ServiceErrors says which services of a call failed; the others were done.
type ServiceErrors map[ID]error

func (e ServiceErrors) Error() string {
	for id, err := range e {
		if len(e) == 1 {
			return fmt.Sprintf("service %s: %v", id, err)
		}
		return fmt.Sprintf("%d services, one of them %s: %v", len(e), id, err)
	}
	return "no service"
}

// ErrUnsupported is wrapped by a backend's constructor where the kernel lacks what it needs.
var ErrUnsupported = errors.New("not supported by this kernel")
