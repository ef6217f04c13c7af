package crilog

import (
	"bytes"
	"fmt"
	"io"
)

// tailBlock is how much is read at once on the way back from the end.
const tailBlock = 64 << 10

// tailOffset finds where the last n lines of the container begin in a file of
// size bytes. Entries that are parts of one line count once.
func tailOffset(f io.ReaderAt, size, n int64) (int64, error) {
	if n <= 0 {
		return size, nil
	}
	var (
		buf   []byte // file bytes [pos, pos+len(buf)), of which [.., end) are not yet counted
		pos   = size
		end   = size
		seen  int64
		first = true
	)
	for {
		// The entry that ends at end starts after the line feed before end-1.
		limit := end - 1 - pos
		i := -1
		if limit > 0 {
			i = bytes.LastIndexByte(buf[:limit], '\n')
		}
		if i < 0 && pos > 0 {
			step := min(int64(tailBlock), pos)
			pos -= step
			next := make([]byte, step, step+end-(pos+step))
			if _, err := f.ReadAt(next, pos); err != nil && err != io.EOF {
				return 0, fmt.Errorf("read log backwards: %w", err)
			}
			buf = append(next, buf[:end-(pos+step)]...)
			continue
		}
		start := pos + int64(i) + 1
		if start >= end {
			return 0, nil
		}
		e, err := Parse(bytes.TrimSuffix(buf[start-pos:end-pos], []byte{'\n'}))
		// An entry that cannot be read counts as a line: it must not make the tail longer.
		complete := err != nil || !e.Partial
		if complete || first {
			if seen == n {
				return end, nil
			}
			seen++
		}
		first = false
		if start == 0 {
			return 0, nil
		}
		end = start
	}
}
