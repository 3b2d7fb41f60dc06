// Package address reads the addresses of nodes, such as tcp://NAME@HOST:PORT and unix:///PATH. It
// connects to none of them.
package address
