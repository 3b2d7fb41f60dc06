package transfer

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/internal/sys"
)

// TestOtherUsers has another user connect to the abstract socket of a node that root runs: file permissions do not keep it out.
func TestOtherUsers(t *testing.T) {
	if sys.EffectiveUID() != 0 {
		t.Skip("only root can be another user as well")
	}
	b := open(t, Options{Listen: []string{fmt.Sprintf("unix://@penstock-users-%d", os.Getpid())}})
	a := open(t, Options{})
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); e != 0 {
			done <- e
			return
		}
		_, err := a.Dial(ctx(t), b.Addrs()[0])
		done <- err
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		t.Skip(err)
	} else if err == nil {
		t.Error("a process of another user is a peer of root's node")
	}
	if _, err := a.Dial(ctx(t), b.Addrs()[0]); err != nil {
		t.Errorf("the same user: %v", err)
	}
}
