package netif

import (
	"fmt"
	"os"
	"runtime"

	"github.com/penstock-io/penstock/internal/sys"
)

// Namespace is the network namespace in which a port was opened: sockets that are made later must
// be in it as well.
type Namespace struct {
	file *os.File
	name string // as the kernel writes it, such as net:[4026531840]
}

const ownNetwork = "/proc/thread-self/ns/net"

// OpenNamespace notes the namespace of the calling thread. Close it.
func OpenNamespace() (*Namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name, err := os.Readlink(ownNetwork)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(ownNetwork)
	if err != nil {
		return nil, err
	}
	return &Namespace{f, name}, nil
}

// Do runs f on a thread that is in the namespace.
func (n *Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	name, err := os.Readlink(ownNetwork)
	if err == nil && name == n.name {
		defer runtime.UnlockOSThread()
		return f()
	}
	runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() { done <- n.elsewhere(f) }()
	return <-done
}

// elsewhere runs f on a thread that goes to the namespace for it and comes back. The goroutine ends
// with it.
func (n *Namespace) elsewhere(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(ownNetwork)
	if err == nil {
		defer home.Close()
		err = sys.JoinNetwork(n.file)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("the port was opened in another network namespace, and going back there needs "+
			"CAP_SYS_ADMIN: %w", err)
	}
	err = f()
	if sys.JoinNetwork(home) == nil { // otherwise the thread ends with the goroutine
		runtime.UnlockOSThread()
	}
	return err
}

// Close forgets it.
func (n *Namespace) Close() error { return n.file.Close() }
