// Package inbox holds what a peer has sent to the application of a node until that takes it.
//
// A [Header] begins each notification. [Seen] finds those that were delivered before, and [Parts]
// puts those together that are too long for a path. An [Inbox] has the complete ones. None of them
// knows paths or peers, and none calls anything with its mutex held but what Parts charges by.
package inbox
