// Package observe is what a node of package transfer reports: a snapshot of its state and its form
// in JSON, the same as families for exporters, events and those who listen to them. A node gathers
// (Node.Snapshot, Node.Events); nothing here knows nodes.
package observe
