package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// User1 is the signal that a user sends for what a program says that it does.
const User1 = unix.SIGUSR1

// Interrupts are the signals by which a user or a supervisor asks a program to end in order.
func Interrupts() []os.Signal { return []os.Signal{unix.SIGINT, unix.SIGTERM} }

// BrokenPipe is the signal that ends a program which writes to a pipe without a reader, unless the
// program asks for the signal: the write fails with EPIPE then.
const BrokenPipe = unix.SIGPIPE
