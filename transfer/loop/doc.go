// Package loop polls the paths of a node on one goroutine when no other goroutine does.
package loop
