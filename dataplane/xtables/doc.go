// Package xtables writes iptables rules through nf_tables netlink, in the form that iptables-nft itself writes, so
// that iptables-save and iptables -S print them with their chains and comments.
//
// A Writer owns the chains a Base and its Plans name, and a jump rule in each built-in chain the Base names; every
// other chain and rule in the same tables (Docker's, the operator's) is never touched. What changes is written in
// one transaction: a packet sees the old rules or the new ones.
//
// Each rule carries, in its user data, a comment (iptables prints it) and a fingerprint of its content. That is how
// Sync recognises what is right already, after a restart of the daemon too, and leaves it and its counters alone.
//
// Wire formats: linux/netfilter/nf_tables.h, nfnetlink.h, and the xt_*.h header of each match and target, as
// installed by linux-libc-dev; struct layouts are those of 64-bit little-endian or big-endian machines alike, since
// none holds a pointer but xt_statistic's, which the kernel ignores.
package xtables
