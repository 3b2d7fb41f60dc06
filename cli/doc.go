// Package cli is the command tree of the program penstock: it reads flags, calls the packages below
// and prints for people, or as JSON for programs. Nothing here is needed to use Penstock as a
// library.
package cli
