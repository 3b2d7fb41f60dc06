// Package takeover remembers the sessions that a node lost, until the node at the other end is
// known to have ended them as well.
//
// A session that was lost may have left bytes in the other side's sockets: that side may have been
// stopped, or cut off, and takes them out when it runs again. They must not be written after what a
// later session brings. So a node has lost sessions ended at the other side before it moves
// anything by another session with it: in the hello when it dials, or by a request.
package takeover
