// Package packaging holds the debian tree, the systemd units, the manual pages and the scripts that make packages and
// a repository of them. Its Go part is only these tests of what the units and maintainer scripts promise.
package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// unit reads a unit file into section.key → values.
func unit(t *testing.T, name string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	u, section := map[string][]string{}, ""
	for _, line := range strings.Split(string(b), "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		default:
			k, v, ok := strings.Cut(line, "=")
			if !ok {
				t.Errorf("%s: %q is neither a section nor a setting", name, line)
			}
			u[section+"."+k] = append(u[section+"."+k], v)
		}
	}
	return u
}

func want(t *testing.T, unit map[string][]string, settings map[string]string) {
	t.Helper()
	for k, v := range settings {
		if got := strings.Join(unit["Service."+k], " "); got != v {
			t.Errorf("%s=%q, want %q", k, got, v)
		}
	}
}

func TestDaemonsAreWatched(t *testing.T) {
	for _, name := range []string{"controld", "noded"} {
		u := unit(t, name+".service")
		want(t, u, map[string]string{"Type": "notify", "Restart": "always", "NotifyAccess": "main",
			"ExecStart": "/usr/bin/" + name + " run --config /etc/" + name + "/" + name + ".yaml", "ExecReload": "/bin/kill -HUP $MAINPID"})
		if len(u["Service.WatchdogSec"]) != 1 {
			t.Errorf("%s has no watchdog", name)
		}
		if got := u["Unit.StartLimitIntervalSec"]; len(got) != 1 || got[0] != "0" {
			t.Errorf("%s gives up after some restarts (StartLimitIntervalSec %v); it must come back by itself however long the outage", name, got)
		}
	}
}

// Pods survive noded, and containerd sees the volumes that noded mounts.
func TestNodedLeavesPodsAlone(t *testing.T) {
	u := unit(t, "noded.service")
	want(t, u, map[string]string{"KillMode": "process", "Delegate": "yes"})
	// every option that systemd.exec(5) implements with a mount namespace of the service's own
	for _, k := range []string{"ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateUsers",
		"PrivateNetwork", "PrivateIPC", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "ProtectClock", "ProtectHostname",
		"ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "TemporaryFileSystem", "BindPaths",
		"BindReadOnlyPaths", "MountFlags", "MountAPIVFS", "RootDirectory", "RootImage", "LogNamespace", "DynamicUser"} {
		if v, ok := u["Service."+k]; ok {
			t.Errorf("%s=%v gives noded a view of its own", k, v)
		}
	}
}

func TestControldIsConfined(t *testing.T) {
	want(t, unit(t, "controld.service"), map[string]string{
		"User": "controld", "CapabilityBoundingSet": "", "AmbientCapabilities": "", "NoNewPrivileges": "yes", "ProtectSystem": "strict",
		"ProtectHome": "yes", "PrivateDevices": "yes", "PrivateTmp": "yes", "RestrictNamespaces": "yes", "MemoryDenyWriteExecute": "yes",
		"RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX AF_NETLINK", "StateDirectoryMode": "0700", "UMask": "0077",
	})
}

// Raft data is deleted by nobody but the operator.
func TestPurgeKeepsData(t *testing.T) {
	b, err := os.ReadFile("deb/controld.postrm")
	if err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(string(b), "#DEBHELPER#", "")
	for what, keeps := range map[string]bool{"raft/log": true, "peer.json": true, "snapshots/auto-1.db": true, "audit/audit.log": false, "tmp/x": false} {
		root := t.TempDir()
		file := filepath.Join(root, "var/lib/controld", what)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		// in a tree of its own, with every user command out of reach
		s := strings.NewReplacer(" /var/", " "+root+"/var/", " /etc/", " "+root+"/etc/", "command -v ", "false ").Replace(script)
		if rest := strings.ReplaceAll(s, root, ""); strings.Count(rest, "/var/")+strings.Count(rest, "/etc/") != strings.Count(s, root+"/var/")+strings.Count(s, root+"/etc/") {
			t.Fatalf("the script names a path that would not be kept inside the test's own tree:\n%s", s)
		}
		c := exec.Command("sh", "-s", "purge")
		c.Stdin = strings.NewReader(s)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("purge: %v\n%s", err, out)
		}
		_, err = os.Stat(file)
		if kept := err == nil; kept != keeps {
			t.Errorf("purge with %s: kept %v, want %v", what, kept, keeps)
		}
		if keeps && !strings.Contains(string(out), "rm -r") {
			t.Errorf("purge keeps %s and does not say how to delete it: %q", what, out)
		}
	}
}

func TestScriptsParse(t *testing.T) {
	for shell, patterns := range map[string][]string{
		"sh":   {"deb/*.postinst", "deb/*.postrm", "deb/*.prerm"},
		"bash": {"build-debs", "build-deps", "build-repo", "debian-sources", "fetch-debs", "../images/build", "../images/debian-tree", "../.ci/*", "../test/fleet/fleet", "../test/fleet/*.sh"},
	} {
		for _, p := range patterns {
			files, err := filepath.Glob(p)
			if err != nil || len(files) == 0 {
				t.Errorf("%s matches nothing: %v", p, err)
			}
			for _, f := range files {
				if out, err := exec.Command(shell, "-n", f).CombinedOutput(); err != nil {
					t.Errorf("%s: %s", f, out)
				}
			}
		}
	}
}
