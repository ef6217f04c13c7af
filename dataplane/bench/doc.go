// Package bench measures how long service rules take to write, side by side with the tools that kube-proxy uses for it
// (iptables-nft-restore, iptables-legacy-restore), over the same rules on the same machine, in a network namespace of
// its own. With TRIPOD_BENCH set to a directory it measures 5000 services and writes rules.json there; without it is a
// small run that checks that everything works.
package bench
