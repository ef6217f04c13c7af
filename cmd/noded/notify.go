package main

import (
	"context"
	"fmt"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notify tells systemd when noded is ready (its sync loop turns), how it is, and
// that it lives. The watchdog hears of the sync loop alone: a restart mends a
// stuck loop, but neither the API nor the runtime.
func (d *daemon) notify(ctx context.Context) {
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		d.log.Warn("systemd's watchdog setting is unreadable", "err", err)
	}
	every := 5 * time.Second
	if interval > 0 {
		every = min(every, interval/3)
	}
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	ready, last := false, ""
	for {
		if err := d.agent.Healthy(); err == nil {
			if !ready {
				ready = true
				t.Reset(every)
				_, _ = systemd.SdNotify(false, systemd.SdNotifyReady)
			}
			if interval > 0 {
				_, _ = systemd.SdNotify(false, systemd.SdNotifyWatchdog)
			}
		} else if ready {
			d.log.Error("the watchdog is not fed", "err", err)
		}
		if s := d.summaryLine(); s != last {
			last = s
			_, _ = systemd.SdNotify(false, "STATUS="+s)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func notifyStopping() {
	_, _ = systemd.SdNotify(false, systemd.SdNotifyStopping+"\nSTATUS=stopping; pods live on")
}

// summaryLine is what `systemctl status` shows.
func (d *daemon) summaryLine() string {
	s := d.status()
	line := fmt.Sprintf("node %s, %d pods, API %s, services by %s", s.Node, s.Pods, s.Peer, s.ProxyMode)
	if p := s.problems(); len(p) > 0 {
		line += "; " + p[0]
	}
	return line
}
