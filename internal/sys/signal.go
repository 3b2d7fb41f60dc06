package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// Interrupts are the signals by which a user or a supervisor asks a program to end in order.
func Interrupts() []os.Signal { return []os.Signal{unix.SIGINT, unix.SIGTERM} }
