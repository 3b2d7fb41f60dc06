// Package digest proves transfers end to end: it has the bytes of both sides hashed by SHA-256
// (FIPS 180-4) and compares the sums.
//
// An [Asker] has a peer hash blocks of its memory. A [Comparison] hashes the local bytes of one
// transfer while they move, and has the peer hash its own. [Served] keeps the digests that a peer
// asks this side for and has not finished.
package digest
