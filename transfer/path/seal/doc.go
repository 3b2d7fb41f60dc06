// Package seal encrypts and decrypts records of TLS 1.3 with keys that both ends already have. It
// follows RFC 8446, sections 5.1 to 5.5; it has no handshake, sockets or clock, and allocates
// nothing after New.
//
//	root, err := seal.Derive(secret, "example client", transcript) // the same on both ends; one root for each direction
//	w, err := seal.NewSealer(root, seal.Options{})                 // the end that sends
//	r, err := seal.NewOpener(root, seal.Options{})                 // the end that receives
//
//	rec := make([]byte, seal.HeaderSize+len(msg)+seal.TrailerSize)
//	copy(rec[seal.HeaderSize:], msg)
//	rec = rec[:w.Seal(rec, seal.Data, len(msg))]                   // encrypted where it is
//
//	n, err := seal.RecordSize(rec)                                 // from its first bytes, so that a stream can be cut
//	typ, msg, err := r.Open(nil, rec[:n])                          // or into a place of the caller's choice
//
// A record is a header of 5 bytes, up to MaxContent bytes of content, one byte that says their
// type, and a tag of 16 bytes; the last three are encrypted with AES-128-GCM. The n-th record of a
// key is sealed with the nonce n, so that a record that was changed, repeated, left out, moved or
// taken from another connection or direction fails its tag. Such an error is final: an Opener opens
// nothing any more.
//
// A Sealer changes its key before the limit of section 5.5 (see Options.Limit), with the standard's
// KeyUpdate message; an Opener follows, and refuses a peer that does not change in time. Everything
// is in the format of the standard, so that an end may be the kernel's implementation (see
// Secret.Keys) or any other.
package seal
