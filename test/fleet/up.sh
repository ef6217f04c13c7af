#!/bin/bash
# up.sh: a cluster on three hosts, installed and operated as a user would: apt, controld, noded, kubectl. Every step is
# skipped where it was done before, so a second run mends what is missing. `up.sh upgrade` also installs what is in
# .tripod/repo on hosts that have an older version, one host after the other.
# Leaves .tripod/kubeconfig and .tripod/etcd/{ca.crt,client.crt,client.key}. Whole output: .tripod/logs/up.log
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); top=$(cd "$here/../.." && pwd); cd "$top"
T=$top/.tripod
fleet=$here/fleet
NET=${FLEET_NET:-172.31.77}
VIP=$NET.10
HOSTS="1 2 3"
mkdir -p "$T/logs" "$T/etcd"
log=$T/logs/up.log; : >"$log"
began=$SECONDS
step= where=
say() { printf '[%3ds] %s\n' $((SECONDS - began)) "$*"; }
step() { step=$1 where=${2:-}; say "$step${where:+ on host $where}"; echo "== $step $where" >>"$log"; }

# at I CMD…: in host I; output to the log.
at() { where=$1; "$fleet" in "$@" >>"$log" 2>&1 </dev/null; }
# ask I CMD…: in host I; standard output is the answer.
ask() { where=$1; "$fleet" in "$@" 2>>"$log" </dev/null; }
kubectl() { "$fleet" run kubectl --kubeconfig "$T/kubeconfig" --request-timeout=10s "$@" </dev/null; }

failed() {
  local rc=$? i
  trap - ERR EXIT
  [ $rc != 0 ] || rc=1
  say "FAILED: $step${where:+, host $where}"
  echo "--- last lines of $log"; tail -n 15 "$log"
  for i in ${where:-$HOSTS}; do
    echo "--- journal of host $i"
    "$fleet" in "$i" sh -c 'journalctl --no-pager -q -o short -n 20 -u controld -u noded; journalctl --no-pager -q -o short -n 5 -p warning -u containerd' 2>/dev/null </dev/null | cut -c1-400 || echo "host $i is not up; console: $(tail -n 3 "${FLEET_DIR:-/var/lib/tripod-fleet}/$i/console.log" 2>/dev/null)"
  done
  "$fleet" collect "$T/logs/fleet" 2>/dev/null || true
  echo "The hosts are left as they are. Look around with: test/fleet/fleet in ${where:-1} bash    Remove them with: make down"
  exit $rc
}
trap failed ERR
trap 'echo "interrupted; make down removes the hosts"; trap - ERR; exit 130' INT TERM
set -E

# await SECONDS WHAT CMD…: until CMD succeeds; its output is the state that is shown every 5 seconds.
await() {
  local limit=$1 what=$2 t0=$SECONDS said=$SECONDS state; shift 2
  while ! state=$("$@" 2>>"$log"); do
    if [ $((SECONDS - said)) -ge 5 ]; then say "  waiting for $what, $((SECONDS - t0)) s: $(head -n 1 <<<"$state")"; said=$SECONDS; fi
    if [ $((SECONDS - t0)) -ge "$limit" ]; then
      echo "gave up waiting for $what after $limit s; last state: $state" | tee -a "$log"
      return 1
    fi
    sleep 1
  done
}

install_packages() {        # on one host
  local i=$1
  "$fleet" in "$i" sh -euc '
    echo "deb [trusted=yes] file:/srv/repo ./" >/etc/apt/sources.list.d/tripod.list
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confdef \
      -o Dpkg::Options::=--force-confold -o Dpkg::Options::=--force-unsafe-io controld noded kubectl' >"$T/logs/install-$i.log" 2>&1 </dev/null
}
installed() { "$fleet" in "$1" dpkg-query -W -f '${Version}' controld 2>/dev/null </dev/null || true; }
newest=$(ls "$T"/repo/controld_*.deb | sort -V | tail -n 1 | sed -E 's/.*controld_(.*)_[a-z0-9]+\.deb/\1/')

step "booting three hosts"
"$fleet" up 3 2>&1 | tee -a "$log"

fresh=
for i in $HOSTS; do [ -n "$(installed "$i")" ] || fresh+=" $i"; done
if [ -n "$fresh" ]; then
  step "installing $newest by apt on host$fresh"
  declare -A pids=()
  for i in $fresh; do install_packages "$i" & pids[$i]=$!; done
  for i in $fresh; do where=$i; wait "${pids[$i]}" || { cat "$T/logs/install-$i.log" >>"$log"; false; }; done
fi
for i in $HOSTS; do
  v=$(installed "$i")
  [ "$v" != "$newest" ] || continue
  if [ "${1:-}" != upgrade ]; then say "host $i runs $v, this tree is $newest; make redeploy upgrades"; continue; fi
  step "upgrading from $v to $newest" "$i"
  install_packages "$i" || { cat "$T/logs/install-$i.log" >>"$log"; false; }
  if ask "$i" systemctl is-enabled -q controld; then await 120 "controld on host $i" ask "$i" controld status; fi
done

enabled() { ask "$1" systemctl is-enabled "$2" >/dev/null; }

if ! enabled 1 controld; then
  step "controld init --vip $VIP" 1
  at 1 controld init --vip "$VIP"
fi
for i in 2 3; do
  enabled "$i" controld && continue
  step "controld join" "$i"
  token=$(ask 1 controld token --role peer -o token); where=$i
  at "$i" controld join "$token"
done

step "administrator's kubeconfig, and etcd's client certificate, into .tripod" 1
(umask 077
  ask 1 cat /etc/controld/admin.kubeconfig | sed -E "s#server: https://.*#server: https://$VIP:6443#" >"$T/kubeconfig.new"
  mv "$T/kubeconfig.new" "$T/kubeconfig"
  for f in ca.crt client.crt client.key; do ask 1 cat "/var/lib/controld/pki/etcd/$f" >"$T/etcd/$f"; done)
where=
api_answers() { kubectl get --raw /readyz; }
await 120 "the API at $VIP" api_answers

for i in $HOSTS; do
  enabled "$i" noded && continue
  step "images and noded join" "$i"
  at "$i" sh -euc 'for f in /srv/images/*.tar; do n=$(basename "$f"); [ "$n" = pause.tar ] && continue
    cp "$f" /var/lib/noded/images/."$n".part; mv /var/lib/noded/images/."$n".part /var/lib/noded/images/"$n"; done'
  "$fleet" in "$i" sh -c 'cat >/etc/noded/noded.yaml' <"$here/noded.yaml"
  token=$(ask 1 controld token --role node -o token); where=$i
  at "$i" noded join "$token"
done

step "three nodes, ready"
nodes_ready() {
  local out; out=$(kubectl get nodes --no-headers 2>&1) || { echo "$out"; return 1; }
  awk '{printf "%s %s  ", $1, $2}' <<<"$out"
  [ "$(awk '$2=="Ready"' <<<"$out" | wc -l)" = 3 ]
}
await 180 "three ready nodes" nodes_ready

step "application: test/fleet/demo.yaml"
kubectl apply -f "$here/demo.yaml" >>"$log" 2>&1
rolled_out() {
  kubectl get pods -l app=hello --no-headers 2>&1 | awk '{printf "%s %s %s  ", $1, $2, $3}'
  kubectl rollout status deployment/hello --timeout=1s >/dev/null 2>&1
}
await 240 "three ready pods of deployment/hello" rolled_out

step "the page, from every host, through ClusterIP and NodePort"
cluster_ip=$(kubectl get service hello -o 'jsonpath={.spec.clusterIP}')
page() { local out; out=$("$fleet" "${@:2}" curl -sS --max-time 5 "$1" 2>&1 </dev/null) || { echo "$out"; return 1; }; grep -q 'Tripod serves this page' <<<"$out" || { echo "unexpected answer: $out"; return 1; }; }
for i in $HOSTS; do
  where=$i
  await 60 "http://$cluster_ip from host $i" page "http://$cluster_ip/" in "$i"
  for k in $HOSTS; do await 60 "http://$NET.1$k:30080 from host $i" page "http://$NET.1$k:30080/" in "$i"; done
  say "  host $i: ClusterIP $cluster_ip and NodePort 30080 of all hosts answer"
done
where=
for k in $HOSTS; do await 60 "http://$NET.1$k:30080 from outside" page "http://$NET.1$k:30080/" run; done
say "  outside: NodePort 30080 of all hosts answers"

cat <<X

The cluster is up ($((SECONDS - began)) s). Try:
  test/fleet/fleet run kubectl --kubeconfig .tripod/kubeconfig get pods -A -o wide
  test/fleet/fleet run curl http://$NET.11:30080/
  test/fleet/fleet in 1 controld status
  test/fleet/fleet in 2 noded status
  test/fleet/fleet run etcdctl --endpoints https://$NET.11:2379,https://$NET.12:2379,https://$NET.13:2379 \\
      --cacert .tripod/etcd/ca.crt --cert .tripod/etcd/client.crt --key .tripod/etcd/client.key endpoint status -w table
  test/fleet/fleet kill 1      (power cut of a host; the cluster goes on; fleet start 1 boots it again)
  make down
X
