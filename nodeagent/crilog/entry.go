package crilog

import (
	"bytes"
	"fmt"
	"time"
)

// Stream is where a process wrote an entry.
type Stream string

// The streams of a container.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Entry is one line of a log file.
type Entry struct {
	Time    time.Time
	RawTime []byte // as written, a slice of the line parsed
	Stream  Stream
	Partial bool   // the line goes on in the stream's next entry
	Content []byte // without the line feed, a slice of the line parsed
}

// Parse reads one line without its line feed. Further tags, which a future
// runtime may add after a colon, are passed over.
func Parse(line []byte) (Entry, error) {
	var e Entry
	raw, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return e, fmt.Errorf("log entry has no time: %.60q", line)
	}
	t, err := time.Parse(time.RFC3339Nano, string(raw))
	if err != nil {
		return e, fmt.Errorf("log entry: %w", err)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || (string(stream) != string(Stdout) && string(stream) != string(Stderr)) {
		return e, fmt.Errorf("log entry names no stream: %.60q", line)
	}
	tags, content, _ := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "P":
		e.Partial = true
	case "F":
	default:
		return e, fmt.Errorf("log entry has the unknown tag %.10q", tag)
	}
	e.Time, e.RawTime, e.Stream, e.Content = t, raw, Stream(stream), content
	return e, nil
}
