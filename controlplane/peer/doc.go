// Package peer is what one controld host is: its configuration (the operator's),
// its identity (the cluster's), and the messages by which an operator's command
// and a joining host talk to it. It does nothing but read, check and write them.
package peer
