// Package word stores words that one goroutine writes and others only read, without the fence of an
// atomic store. Such a fence costs as much on amd64 as all else that a fast path does for a packet.
//
// Store may take the place of w.Store(v) when two things hold:
//
//   - Writes of the word are ordered: the write before this one, by Store or atomic, happens before
//     it. A compare-and-swap that is certain to fail is no write, and may come at any time.
//   - A reader that has not synchronized with the writer works with any value that the word has had
//     since that reader synchronized last. Store orders nothing else: what the writer wrote before
//     it may be seen later.
//
// The Go memory model then promises what is needed: a racing read of a machine word observes a
// value that was written, and none that another write has replaced in the reader's past. On amd64
// and arm64, the only processors with the plain store, the word is one aligned store of 8 bytes: no
// reader sees a half of it, and a locked instruction or an exclusive pair that meets it on another
// processor takes place before or after it. Elsewhere, and with the race detector, Store is atomic.
package word
