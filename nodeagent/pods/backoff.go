package pods

import "time"

// Restarts of a container that ends again and again: the first at once, then
// after 10 s, doubling to 5 min; a run of more than 10 min begins anew. The
// figures are Kubernetes'.
const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
	resetAfter = 10 * time.Minute
)

// restartDelay is how long after its end a container waits for its restart.
// Without memory of it (the agent was restarted) the restart count tells.
func restartDelay(last *Container, memory map[string]Crash) time.Duration {
	if c, ok := memory[last.Name]; ok {
		if last.FinishedAt.Sub(c.At) > resetAfter {
			return 0
		}
		return c.Delay
	}
	if last.Attempt == 0 || last.StartedAt.IsZero() || last.FinishedAt.Sub(last.StartedAt) > resetAfter {
		return 0
	}
	d := firstDelay
	for i := 1; i < last.Attempt && d < maxDelay; i++ {
		d *= 2
	}
	return min(d, maxDelay)
}

func nextDelay(d time.Duration) time.Duration {
	if d == 0 {
		return firstDelay
	}
	return min(2*d, maxDelay)
}
