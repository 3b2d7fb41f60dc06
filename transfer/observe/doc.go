// Package observe describes the state of a node for users: snapshots, JSON, metric families,
// events. A node gathers (Node.Snapshot, Node.Events); nothing here knows nodes.
package observe
