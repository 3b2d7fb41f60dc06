package transfer

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is the processor time that this process has used.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuShare is the share of one core that this process uses while the test does nothing for so long.
func cpuShare(t testing.TB, d time.Duration) float64 {
	t.Helper()
	start, before := time.Now(), cpuTime(t)
	<-time.After(d)
	return float64(cpuTime(t)-before) / float64(time.Since(start))
}
