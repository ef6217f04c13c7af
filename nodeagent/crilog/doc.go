// Package crilog reads container logs in the CRI format: one entry per line,
//
//	<RFC 3339 time with nanoseconds> <stdout|stderr> <P|F> <content>
//
// where tag P says that the line goes on in the stream's next entry. It tails,
// filters, limits and follows them, also over rotation (the file is renamed and
// a new one is made under the same path). The format is the one of the
// Kubernetes enhancement "CRI logging" that every runtime writes.
package crilog
