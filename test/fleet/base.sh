#!/bin/bash
# base.sh: prints the path of the hosts' base file system, building it first when this machine has none.
#
# It is a plain Debian of this machine's own release, from this machine's own apt sources: systemd and what an
# administrator expects on a bare host, and nothing of what Tripod's packages must bring by themselves (no
# containerd, no CNI plugins, no iptables). It is kept outside the clone, in TRIPOD_CACHE (/var/cache/tripod),
# under a name that is the hash of the package list, the sources and this recipe; two runs at once share one build.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${TRIPOD_CACHE:-/var/cache/tripod}

packages=systemd,systemd-sysv,dbus,iproute2,procps,iputils-ping,curl,ca-certificates,kmod,netbase

# Devices, file systems and timers of a real machine that a namespace cannot have or should not run.
masked='systemd-udevd.service systemd-udev-trigger.service systemd-udevd-kernel.socket systemd-udevd-control.socket
  systemd-remount-fs.service dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount
  sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount getty.target
  console-getty.service systemd-timesyncd.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
  e2scrub_all.timer fstrim.timer'

src=$(mktemp -d)
trap 'rm -rf "$src"' EXIT
"$top/packaging/debian-sources" "$src"
key=$( { cat "$src"/machine.*; echo "$packages"; cat "$here/base.sh"; } | sha256sum | cut -c1-12)
base=$cache/base-$key
[ -d "$base" ] && { echo "$base"; exit 0; }

mkdir -p "$cache"
exec 8>"$cache/base-$key.lock"
flock 8
[ -d "$base" ] && { echo "$base"; exit 0; }          # another run built it while this one waited

command -v mmdebstrap >/dev/null || { echo "base: mmdebstrap is missing; apt-get install mmdebstrap" >&2; exit 1; }
tmp=$cache/base-$key.building
rm -rf --one-file-system "$tmp"
trap 'rm -rf "$src"; rm -rf --one-file-system "$tmp"' EXIT
trap 'exit 130' INT TERM
echo "base: building the hosts' file system in $base (about a minute)" >&2
lists=(); for f in "$src"/machine.sources "$src"/machine.list; do [ -s "$f" ] && lists+=("$f"); done
code=$(. /etc/os-release; echo "$VERSION_CODENAME")
if ! mmdebstrap --mode=root --variant=minbase --include="$packages" --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$code" "$tmp" "${lists[@]}" >"$cache/base-$key.log" 2>&1; then
  tail -n 15 "$cache/base-$key.log" >&2
  echo "base: mmdebstrap failed (whole log: $cache/base-$key.log); check this machine's apt sources with apt-get update" >&2
  exit 1
fi
chroot "$tmp" /bin/sh -euc '
  rm -f /etc/machine-id; : >/etc/machine-id
  systemctl mask -q '"$(echo $masked)"'
  mkdir -p /var/log/journal /etc/systemd/journald.conf.d
  apt-get clean
  rm -rf /var/lib/apt/lists/* /etc/apt/sources.list /etc/apt/sources.list.d/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log'
# The journal survives a power cut, and a test that floods it still finds its first lines.
printf '[Journal]\nStorage=persistent\nSystemMaxUse=300M\nRateLimitIntervalSec=0\nSyncIntervalSec=5s\nReadKMsg=no\n' \
  >"$tmp/etc/systemd/journald.conf.d/fleet.conf"
# Hosts have no way out and no resolver: a name that is not in /etc/hosts fails at once.
rm -f "$tmp/etc/resolv.conf"; : >"$tmp/etc/resolv.conf"
rm -f "$tmp/etc/dpkg/dpkg.cfg.d/"*mmdebstrap*                # documentation of packages installed later is kept
mv "$tmp" "$base"
echo "$base"
