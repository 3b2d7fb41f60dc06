// Package peers gives tests the programs of internal/peers, with proven skips, and compiles a TLS
// stream in C.
package peers
