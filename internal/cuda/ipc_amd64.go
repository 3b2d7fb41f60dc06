package cuda

// handleArgs are the arguments of a function that writes to the first 8 bytes of b and takes the 64
// bytes behind them by value: System V puts a structure of that size on the stack, behind what
// registers hold (six arguments, of which those that are missing are anything).
func handleArgs(b []byte, flags []uintptr) []uintptr {
	args := make([]uintptr, 6, 6+8)
	args[0] = address(b, 0)
	copy(args[1:], flags)
	for i := range 8 {
		args = append(args, uintptr(get[uint64](b, 8+8*i)))
	}
	return args
}
