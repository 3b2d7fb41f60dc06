// Package cli is the command tree of the program penstock: it reads flags, calls other packages and
// prints text or JSON. Nothing here is needed to use Penstock as a library.
package cli
