package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/packet"
)

// Interface is a network interface. Its methods may be called from any goroutine; all but Watch and
// Close only read memory.
type Interface struct {
	index     int
	speed     uint64
	numa      int
	rxQueues  int
	addresses []netip.Prefix

	link engine.LinkUp
	gone atomic.Bool
	mtu  atomic.Int64
	mac  atomic.Pointer[packet.MAC]
	name atomic.Pointer[string]

	ask     *kernel
	watch   *linkWatch
	changed func()
	waker   *engine.Waker
	stop    chan struct{}
	wg      sync.WaitGroup

	mu       sync.Mutex // over the next fields
	watching bool
	closed   bool
}

// Open looks at an interface of the calling thread's network namespace. mtu is what it must have at
// least, in bytes; 0 for any. The error wraps engine.ErrNotFound where there is no such interface,
// engine.ErrInvalid where the name or the MTU cannot be. Close it.
func Open(name string, mtu int) (*Interface, error) {
	i := &Interface{numa: -1, waker: engine.NewWaker(), stop: make(chan struct{})}
	if err := i.open(name, mtu); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

func (i *Interface) open(name string, mtu int) (err error) {
	if i.watch, err = watchLinks(); err != nil { // before the first look, so that no change is missed
		return err
	}
	if i.ask, err = openKernel(); err != nil {
		return err
	}
	l, err := i.ask.link(name)
	if errors.Is(err, engine.ErrNotFound) {
		return fmt.Errorf("%w; there is %s", err, names())
	}
	if err != nil {
		return err
	}
	if mtu > l.mtu {
		return fmt.Errorf("interface %s has an MTU of %d, the port asks for %d: \"ip link set %s mtu %d\": %w", l.name,
			l.mtu, mtu, l.name, mtu, engine.ErrInvalid)
	}
	i.index = l.index
	i.link.Begin(l.up)
	i.note(l)
	if i.addresses, err = i.ask.addresses(l.index); err != nil {
		return err
	}
	i.hardware(l.name)
	return nil
}

// names are the interfaces of the calling thread's network namespace.
func names() string {
	all, err := net.Interfaces()
	if err != nil {
		return "nothing that can be listed: " + err.Error()
	}
	out := make([]string, len(all))
	for k := range all {
		out[k] = all[k].Name
	}
	return strings.Join(out, ", ")
}

// hardware finds out what does not change, or changes without an event of the kernel.
func (i *Interface) hardware(name string) {
	// The directory may be that of another namespace, with another device of the name.
	if n, err := strconv.Atoi(sysfs(name, "ifindex")); err == nil && n == i.index {
		if n, err := strconv.Atoi(sysfs(name, "device/numa_node")); err == nil {
			i.numa = n
		}
		queues, _ := filepath.Glob("/sys/class/net/" + name + "/queues/rx-*")
		i.rxQueues = len(queues)
	}
	d, err := ethtool.Open(name)
	if err != nil {
		return
	}
	defer d.Close()
	if speed, err := d.Speed(); err == nil {
		i.speed = speed
	}
	if i.rxQueues == 0 {
		if c, err := d.Channels(); err == nil {
			i.rxQueues = c.RxQueues()
		}
	}
}

func sysfs(device, file string) string {
	b, _ := os.ReadFile("/sys/class/net/" + device + "/" + file)
	return strings.TrimSpace(string(b))
}

// Watch follows changes until Close, in a goroutine of its own, which calls changed after each time
// that the kernel has reported some, and once at the beginning. changed must not call Close. Watch
// is called once at most.
func (i *Interface) Watch(changed func()) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.closed:
		return engine.ErrClosed
	case i.watching:
		return fmt.Errorf("netif: %s is watched already: %w", i.Name(), engine.ErrExists)
	}
	if err := engine.Events.Add(i.watch.fd); err != nil {
		return err
	}
	i.changed, i.watching = changed, true
	i.wg.Add(1)
	go i.run()
	return nil
}

func (i *Interface) run() {
	defer i.wg.Done()
	for {
		if i.watch.read(i.note) { // some changes were lost
			i.look()
		}
		i.changed()
		if engine.Events.Arm(i.watch.fd, i.waker) != nil {
			return
		}
		select {
		case <-i.waker.C():
		case <-i.stop:
			return
		}
	}
}

// look asks the kernel how things are.
func (i *Interface) look() {
	l, err := i.ask.linkAt(i.index)
	if errors.Is(err, engine.ErrNotFound) {
		l, err = link{index: i.index, gone: true}, nil
	}
	if err == nil {
		i.note(l)
	}
}

// note takes over what the kernel says of an interface.
func (i *Interface) note(l link) {
	if l.index != i.index || i.gone.Load() { // another one may have got the number
		return
	}
	i.link.Set(l.up && !l.gone)
	if l.gone {
		i.gone.Store(true)
		return
	}
	i.mtu.Store(int64(l.mtu))
	if m := i.mac.Load(); m == nil || *m != l.mac {
		i.mac.Store(&l.mac)
	}
	if n := i.name.Load(); n == nil || *n != l.name {
		i.name.Store(&l.name)
	}
}

// Index is the interface's number.
func (i *Interface) Index() int { return i.index }

// Name is the interface's name; once it is gone, the last one that it had here.
func (i *Interface) Name() string { return *i.name.Load() }

// Up reports whether it is switched on and its cable is plugged in.
func (i *Interface) Up() bool { return i.link.State().Up }

// Gone reports whether it was deleted or moved to another namespace.
func (i *Interface) Gone() bool { return i.gone.Load() }

// MTU is the MTU in bytes.
func (i *Interface) MTU() int { return int(i.mtu.Load()) }

// MAC is the interface's Ethernet address; zero where it has none.
func (i *Interface) MAC() packet.MAC { return *i.mac.Load() }

// RxQueues is how many receive queues it had when it was opened; 0: not known.
func (i *Interface) RxQueues() int { return i.rxQueues }

// Changes is how often it went up or down since it was opened.
func (i *Interface) Changes() uint64 { return i.link.State().Changes }

// State is what LinkState of an engine.LinkReporter on the interface returns.
func (i *Interface) State() engine.LinkState {
	s := i.link.State()
	s.Gone = i.Gone()
	return s
}

// Info is what Info of an engine.Port on the interface returns, but for its engine and address.
func (i *Interface) Info() engine.PortInfo {
	return engine.PortInfo{Device: i.Name(), MAC: i.MAC(), IPs: slices.Clone(i.addresses), MTU: i.MTU(), Up: i.Up(),
		Speed: i.speed, NUMA: i.numa}
}

// Close ends the watch, and waits for changed to return. What was known stays. Closing again does
// nothing.
func (i *Interface) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	close(i.stop)
	i.wg.Wait()
	var errs []error
	if i.watching {
		engine.Events.Remove(i.watch.fd)
	}
	if i.watch != nil {
		errs = append(errs, i.watch.close())
	}
	if i.ask != nil {
		errs = append(errs, i.ask.close())
	}
	return errors.Join(errs...)
}
