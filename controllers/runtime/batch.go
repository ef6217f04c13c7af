package runtime

import "sync"

// SlowStart calls f up to n times, in batches of 1, 2, 4… at once, and stops
// after the first batch with an error, so that creations that all fail for one
// reason (a quota, say) are not tried by the hundred. It returns how many calls
// succeeded and the first error.
func SlowStart(n int, f func() error) (int, error) {
	done := 0
	for size := 1; done < n; size *= 2 {
		size = min(size, n-done)
		errs := make([]error, size)
		Parallel(size, size, func(i int) { errs[i] = f() })
		var first error
		for _, err := range errs {
			if err == nil {
				done++
			} else if first == nil {
				first = err
			}
		}
		if first != nil {
			return done, first
		}
	}
	return done, nil
}

// Parallel calls f(0) to f(n-1), at most limit at once, and waits for all. A
// panic in f is raised again in the caller, where the controller's supervisor
// catches it.
func Parallel(n, limit int, f func(i int)) {
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		caught any
		next   = make(chan int)
	)
	for range min(n, max(limit, 1)) {
		wg.Go(func() {
			for i := range next {
				func() {
					defer func() {
						if r := recover(); r != nil {
							mu.Lock()
							caught = r
							mu.Unlock()
						}
					}()
					f(i)
				}()
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if caught != nil {
		panic(caught)
	}
}
