// Package fence waits until nothing that a peer sent before can reach a revoked export any more.
//
// A [Set] has the fences of one path that is open: they are operations of the path. A [Closed] has
// the paths of a node that were closed although their peers may still reach memory of it, as those
// that map it do, until they have let go.
package fence
