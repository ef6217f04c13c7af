package cgroups

import (
	"context"
	"fmt"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const unitTimeout = 30 * time.Second

// unitManager is the part of systemd that makes slices.
type unitManager interface {
	// start makes a transient slice, or sets the properties of one that runs.
	start(name string, props []systemd.Property) error
	stop(name string) error
}

func (m *Manager) ensureSlice(slice string, l Limits) error {
	// The slices above come into being by name, but without accounting the
	// controllers are not enabled in them.
	parts := strings.Split(strings.TrimSuffix(slice, ".slice"), "-")
	for i := 1; i < len(parts); i++ {
		if err := m.units.start(strings.Join(parts[:i], "-")+".slice", accounting()); err != nil {
			return err
		}
	}
	return m.units.start(slice, append(accounting(), sliceLimits(l, m.v2)...))
}

func prop(name string, v any) systemd.Property {
	return systemd.Property{Name: name, Value: dbus.MakeVariant(v)}
}

func accounting() []systemd.Property {
	return []systemd.Property{prop("CPUAccounting", true), prop("MemoryAccounting", true), prop("TasksAccounting", true), prop("IOAccounting", true)}
}

func sliceLimits(l Limits, v2 bool) []systemd.Property {
	const infinity = ^uint64(0)
	memory, quota, pids := infinity, infinity, infinity
	if l.MemoryBytes > 0 {
		memory = uint64(l.MemoryBytes)
	}
	if l.CPUQuota > 0 {
		period := l.CPUPeriod
		if period == 0 {
			period = defaultQuota
		}
		// systemd keeps quotas in whole percents and rounds down what is between.
		quota = uint64(l.CPUQuota) * 1_000_000 / period
		if rest := quota % 10_000; rest != 0 {
			quota += 10_000 - rest
		}
	}
	if l.Pids > 0 {
		pids = uint64(l.Pids)
	}
	shares := max(l.CPUShares, minShares)
	out := []systemd.Property{prop("CPUQuotaPerSecUSec", quota), prop("TasksMax", pids)}
	if v2 {
		return append(out, prop("CPUWeight", WeightFromShares(shares)), prop("MemoryMax", memory))
	}
	return append(out, prop("CPUShares", shares), prop("MemoryLimit", memory))
}

// dbusUnits is systemd over the system bus. Connections are short: pods come
// and go seldom, and a kept connection would have to survive restarts of dbus.
type dbusUnits struct{}

func (dbusUnits) start(name string, props []systemd.Property) error {
	ctx, cancel := context.WithTimeout(context.Background(), unitTimeout)
	defer cancel()
	c, err := systemd.NewWithContext(ctx)
	if err != nil {
		return fmt.Errorf("reach systemd: %w", err)
	}
	defer c.Close()
	if p, err := c.GetUnitPropertyContext(ctx, name, "ActiveState"); err == nil && p.Value.Value() == "active" {
		if err := c.SetUnitPropertiesContext(ctx, name, true, props...); err != nil {
			return fmt.Errorf("set properties of %s: %w", name, err)
		}
		return nil
	}
	all := append([]systemd.Property{prop("Description", "pods of this node: "+name), prop("DefaultDependencies", false)}, props...)
	done := make(chan string, 1)
	if _, err := c.StartTransientUnitContext(ctx, name, "replace", all, done); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	select {
	case r := <-done:
		if r != "done" {
			return fmt.Errorf("start %s: systemd says %s", name, r)
		}
	case <-ctx.Done():
		return fmt.Errorf("start %s: %w", name, ctx.Err())
	}
	return nil
}

func (dbusUnits) stop(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), unitTimeout)
	defer cancel()
	c, err := systemd.NewWithContext(ctx)
	if err != nil {
		return fmt.Errorf("reach systemd: %w", err)
	}
	defer c.Close()
	done := make(chan string, 1)
	if _, err := c.StopUnitContext(ctx, name, "replace", done); err != nil {
		if strings.Contains(err.Error(), "not loaded") {
			return nil
		}
		return fmt.Errorf("stop %s: %w", name, err)
	}
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("stop %s: %w", name, ctx.Err())
	}
	return nil
}
