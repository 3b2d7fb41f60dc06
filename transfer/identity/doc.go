// Package identity authenticates nodes and authorizes them: keys, certificates, TLS configurations,
// rights by name, pairing.
//
// A fleet has one small private certificate authority, the [Authority], or for a while two. Each
// node has a name, a key that never leaves its machine, and a certificate of the authority that
// binds both. Two nodes talk over TLS 1.3 with certificates on both sides, and trust the roots of
// their own bundle only, never those of the system.
//
// An [Identity] is a node's part of that: certificate, key, roots and rules, from the files of one
// directory that "penstock pair" writes, or from memory.
//
//	id, err := identity.Open(dir, identity.Options{})
//	ln = tls.NewListener(ln, id.Server())             // accepts every name of the authority that is not denied
//	conn := tls.Client(raw, id.Client("gpu-7"))       // and only gpu-7
//	peer, err := identity.PeerOf(conn.ConnectionState())
//	if id.Rights(peer.Name)&identity.Read == 0 { ... }
//
// Files that change are read again without a restart, at most once per [Options.Interval], when a
// handshake or a question about rights comes: new handshakes use what is new, sessions live on.
// What cannot be used (half written, a key that does not belong to its certificate, a rule with a
// mistake) changes nothing and is reported by [Stats].
//
// Rights are given by name: see [Rules] for the file, [Policy] for the interface. A name or a
// serial number that the rules deny gets no further handshake; [Identity.Denied] lets a program end
// the sessions that live.
//
// Tests of other packages make identities without files:
//
//	ca, err := identity.NewAuthority()
//	a, err := ca.Issue("a", identity.IssueOptions{})
//
// docs/security.md has the threat model and the files, docs/pairing.md the protocol of pairing.
package identity
