//go:build !amd64

package cuda

// handleArgs are the arguments of a function that writes to the first 8 bytes of b and takes the 64
// bytes behind them by value: AAPCS64 passes a structure of that size by its address, in its place
// among the arguments.
func handleArgs(b []byte, flags []uintptr) []uintptr {
	return append([]uintptr{address(b, 0), address(b, 8)}, flags...)
}
