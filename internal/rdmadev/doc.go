// Package rdmadev opens RDMA devices for the engines rdma and verbs and the path verbs: library,
// ports, events, receives from pools, progress of queue pairs. A Library finds devices, a Device is
// one that is open for a port, Receives are the slots of pools that a device fills, and a Watch
// shows that a queue pair gets on.
package rdmadev
