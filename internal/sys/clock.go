package sys

import "golang.org/x/sys/unix"

// ClockState is what the kernel knows of the system's clock (man 2 adjtimex).
type ClockState struct {
	Synchronised bool   // a program such as chrony keeps it on time
	MaxError     int64  // bound of its error, in microseconds
	Offset       uint64 // magnitude of the last correction, in nanoseconds
}

// Clock asks for the state of the system's clock. It takes no rights.
func Clock() (ClockState, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return ClockState{}, callError("adjtimex", "", err)
	}
	off := int64(t.Offset)
	if t.Status&unix.STA_NANO == 0 {
		off *= 1000
	}
	if off < 0 {
		off = -off
	}
	return ClockState{Synchronised: state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0,
		MaxError: int64(t.Maxerror), Offset: uint64(off)}, nil
}
