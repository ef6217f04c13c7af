package cri

import (
	"bytes"
	"io"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	maxMessageBytes    = 4096 // of a termination message
	maxLogMessageBytes = 2048 // of one that is taken from the log
	maxLogMessageLines = 80
)

// terminationMessage is what an ended container left: its message file, or
// with FallbackToLogsOnError the end of its log, or the runtime's own word.
func terminationMessage(st *runtimeapi.ContainerStatus) string {
	path := st.Annotations[annotationMessagePath]
	msg := ""
	for _, m := range st.Mounts {
		if path != "" && m.ContainerPath == path {
			msg = readHead(m.HostPath, maxMessageBytes)
		}
	}
	failed := st.ExitCode != 0 || st.Reason == "OOMKilled"
	if msg == "" && failed && v1.TerminationMessagePolicy(st.Annotations[annotationMessagePolicy]) == v1.TerminationMessageFallbackToLogsOnError {
		msg = logTail(st.LogPath)
	}
	if msg == "" {
		return st.Message
	}
	if st.Message != "" {
		return st.Message + ": " + msg
	}
	return msg
}

func readHead(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, n))
	return string(b)
}

// logTail returns the text of the last lines of a log in CRI's format
// ("time stream tag text").
func logTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const window = 64 << 10
	if fi, err := f.Stat(); err == nil && fi.Size() > window {
		if _, err := f.Seek(-window, io.SeekEnd); err != nil {
			return ""
		}
	}
	b, _ := io.ReadAll(io.LimitReader(f, window))
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	if len(lines) > maxLogMessageLines {
		lines = lines[len(lines)-maxLogMessageLines:]
	}
	var out strings.Builder
	for _, l := range lines {
		p := bytes.SplitN(l, []byte(" "), 4)
		if len(p) < 4 {
			continue
		}
		out.Write(p[3])
		if string(p[2]) == "F" {
			out.WriteByte('\n')
		}
	}
	s := out.String()
	if len(s) > maxLogMessageBytes {
		s = s[len(s)-maxLogMessageBytes:]
	}
	return s
}
