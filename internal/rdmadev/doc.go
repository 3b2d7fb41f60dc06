// Package rdmadev is what the users of RDMA verbs share: the engines rdma (messages) and verbs
// (frames), and the path verbs (transfers). A Library finds devices, a Device is one that is open
// for a port, Receives are the slots of pools that a device fills, and a Watch shows that a queue
// pair gets on.
package rdmadev
