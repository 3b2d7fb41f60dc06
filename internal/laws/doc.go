// Package laws checks the rules of ARCHITECTURE.md as tests over the source tree, and wraps long
// lines of Go files.
package laws

//go:generate go test -run ^TestPackagesPage$ -update .
