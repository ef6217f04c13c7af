package raftfsm

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hlog lets HashiCorp's libraries log through slog, one level lower than they think for what is
// routine: their info lines are for their developers.
type hlog struct {
	hclog.Logger // for what is not overridden: a null logger
	log          *slog.Logger
	name         string
}

func newHLog(l *slog.Logger, name string) hclog.Logger {
	return &hlog{Logger: hclog.NewNullLogger(), log: l.With("lib", name), name: name}
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	}
	return slog.LevelDebug
}

func (h *hlog) Log(level hclog.Level, msg string, args ...any) {
	l := slogLevel(level)
	if !h.log.Enabled(context.Background(), l) {
		return
	}
	out := make([]any, 0, len(args))
	for i := 0; i+1 < len(args); i += 2 {
		v := args[i+1]
		if f, ok := v.(hclog.Format); ok && len(f) > 0 {
			v = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		out = append(out, fmt.Sprint(args[i]), v)
	}
	h.log.Log(context.Background(), l, msg, out...)
}

func (h *hlog) Trace(msg string, args ...any) {}
func (h *hlog) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hlog) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hlog) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hlog) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hlog) IsTrace() bool { return false }
func (h *hlog) IsDebug() bool { return h.log.Enabled(context.Background(), slog.LevelDebug) }
func (h *hlog) IsInfo() bool  { return h.IsDebug() }
func (h *hlog) IsWarn() bool  { return true }
func (h *hlog) IsError() bool { return true }

func (h *hlog) With(args ...any) hclog.Logger {
	return &hlog{Logger: h.Logger, log: h.log.With(args...), name: h.name}
}
func (h *hlog) Named(name string) hclog.Logger {
	return &hlog{Logger: h.Logger, log: h.log.With("part", name), name: name}
}
func (h *hlog) ResetNamed(name string) hclog.Logger { return h.Named(name) }
func (h *hlog) Name() string                        { return h.name }
func (h *hlog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(h.log.Handler(), slog.LevelDebug)
}
func (h *hlog) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return h.StandardLogger(o).Writer()
}
