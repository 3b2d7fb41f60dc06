// Package peers is what tests add to package internal/peers, which runs other people's programs:
// [Need] skips a test on a machine that lacks one, and keeps its use in the lab's ledger;
// [OpenSSLStream] compiles the program in C that streams over TLS.
package peers
