// Package nodeagent runs the pods of one node.
//
// It watches the pods bound to its node, brings containerd (through CRI v1) to
// what they ask for, and reports what is there: pod status, node status and
// the node's Lease. The life of a pod is a state machine in package pods: a
// pure function looks at what is wanted and what CRI reports and names one
// transition, a worker per pod carries it out. Nothing a worker must know to
// go on is kept outside CRI labels, the API and /var/lib/noded, so an Agent
// that ends (Run returns, the process is killed) leaves containers running and
// the next one takes them over, same processes, same restart counts.
//
// The packages below it, one noun each:
//
//	cri      the runtime client, and pod spec to CRI configuration
//	pods     the state machine of a pod: observed state to one transition
//	status   observed state to v1.PodStatus
//	probes   liveness, readiness and startup probes
//	volumes  emptyDir, hostPath, configMap, secret, downwardAPI, projected
//	images   archives imported from a directory, presence, pulls, garbage
//	cgroups  driver detection and the cgroup of a pod
//	node     Node object, conditions, Lease
//
// Package network, server and bootstrap beside them are wired in cmd/noded.
package nodeagent
