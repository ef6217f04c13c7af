package main

import (
	"context"
	"strings"
	"time"

	"github.com/tripod-cluster/tripod/dataplane/modes"
	"github.com/tripod-cluster/tripod/nodeagent/config"
)

// switchTimeout bounds the change of the service mode; traffic flows meanwhile.
const switchTimeout = 2 * time.Minute

// reload takes up what can change while noded runs: the log level and how
// Services are programmed. A file that cannot be read changes nothing.
func (d *daemon) reload(ctx context.Context) {
	next, err := d.load()
	if err != nil {
		d.log.Error("configuration not reloaded, the one before stays in force", "err", err)
		return
	}
	old := d.config()
	if level, err := next.Level(); err == nil {
		d.level.Set(level)
	}
	if need := config.NeedRestart(old, next); len(need) > 0 {
		d.log.Warn("these keys changed and need `systemctl restart noded` (pods live on)", "keys", strings.Join(need, ", "))
	}
	if samePlane(old.Proxy, next.Proxy) {
		d.setProxy(next)
		d.log.Info("configuration reloaded")
		return
	}
	backend, err := modes.Open(planeOptions(next, d.log))
	if err != nil {
		d.log.Error("service mode not changed, the one before stays", "mode", next.Proxy.Mode, "err", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	if err := d.plane.SetBackend(ctx, backend); err != nil {
		d.log.Error("service mode not changed, the one before stays", "mode", next.Proxy.Mode, "err", err)
		return
	}
	d.setProxy(next)
	d.log.Info("configuration reloaded", "proxyMode", next.Proxy.Mode)
}

// setProxy keeps what was taken up; the rest stays as it is in force.
func (d *daemon) setProxy(next config.Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg.Proxy, d.cfg.LogLevel = next.Proxy, next.LogLevel
}

func samePlane(a, b config.Proxy) bool {
	return a.Mode == b.Mode && (a.Scheduler == b.Scheduler || a.Mode != modes.IPVS) && a.MasqueradeAll == b.MasqueradeAll &&
		a.MasqueradeBit == b.MasqueradeBit && strings.Join(a.NodePortAddresses, " ") == strings.Join(b.NodePortAddresses, " ")
}
