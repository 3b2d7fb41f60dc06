// Package address reads the addresses of nodes.
package address
