package guest

import (
	"errors"
	"fmt"
	"os"
)

// PowerOff takes the power from the guest that this process runs in, at once: nothing is closed,
// written or said, and what is on the cable's card is lost. It comes back only where that failed.
// The caller of Run expects it by Spec.PowersOff.
func PowerOff() error {
	if ID() == 0 {
		return errors.New("guest: PowerOff is for a process inside a guest")
	}
	// The order b resets the machine from where it is written, without one word to a driver; qemu
	// ends instead of restarting.
	err := os.WriteFile("/proc/sysrq-trigger", []byte("b"), 0)
	return fmt.Errorf("guest: the power is still on: %w",
		errors.Join(err, errors.New("a write to /proc/sysrq-trigger came back")))
}
