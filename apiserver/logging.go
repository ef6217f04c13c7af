package apiserver

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/klog/v2"
)

// logToSlog sends upstream's log to the process's own, for the whole process.
// Its information is for developers of upstream and becomes debug; warnings
// and errors stay what they are.
var logToSlog = sync.OnceFunc(func() {
	klog.SetSlogLogger(slog.New(demoted{slog.Default().Handler()}))
})

type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, l slog.Level) bool {
	return d.Handler.Enabled(ctx, demote(l))
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(a []slog.Attr) slog.Handler { return demoted{d.Handler.WithAttrs(a)} }
func (d demoted) WithGroup(name string) slog.Handler   { return demoted{d.Handler.WithGroup(name)} }

func demote(l slog.Level) slog.Level {
	if l < slog.LevelWarn {
		return min(l, slog.LevelDebug)
	}
	return l
}
