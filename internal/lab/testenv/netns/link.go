package netns

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// Link is a host's end of a cable.
type Link struct {
	Name   string // of the device in its host: eth0, eth1 ...
	MTU    int    // bytes
	Queues int    // receive queues, and as many transmit queues
	MAC    net.HardwareAddr
	IPv4   netip.Addr
	IPv6   netip.Addr
	Local  netip.Addr // in 127.77.0.0/16, with Topology.Localnet

	near, far  end
	peer       *Link   // that far belongs to; nil when that is a bridge
	neighbours []*Link // that are known without asking
	spec       LinkSpec
	emulated   *emulated // nil of a cable
	wire       *wire     // what an emulated link does to what the host sends
}

// end is a device in a namespace.
type end struct {
	host *Host
	dev  string
	ipv6 netip.Addr // that it is to have; none if it is a port of a bridge
	tap  bool       // the kernel calls its state unknown when it has a carrier
}

// Host is the host whose link it is.
func (l *Link) Host() *Host { return l.near.host }

// Down cuts the cable: the device keeps its addresses and routes but has no carrier when Down
// returns, and what it sends is lost. Between two hosts without a bridge this is done by shutting
// the far device down, so the far host sees its own device switched off and loses the routes over
// it. Of an emulated link (Delay, Loss or Queue) neither host sees anything: what both send is
// lost.
func (l *Link) Down() error {
	if l.emulated != nil {
		l.emulated.cut.Store(true)
		return nil
	}
	if err := l.far.host.ip("link set " + l.far.dev + " down"); err != nil {
		return err
	}
	return l.await(false, l.near)
}

// Up repairs the cable. Both ends have their carrier, and their addresses and known neighbours
// again, when it returns.
func (l *Link) Up() error {
	if l.emulated != nil {
		l.emulated.cut.Store(false)
		return nil
	}
	batch := []string{"link set " + l.far.dev + " up"}
	if l.peer != nil {
		batch = l.peer.up()
	}
	if err := l.far.host.ip(batch...); err != nil {
		return err
	}
	return l.await(true, l.near, l.far)
}

// up are the commands that bring the device up with what a device loses when it goes down.
func (l *Link) up() []string {
	out := []string{"link set " + l.Name + " up"}
	addrs := []netip.Prefix{l.spec.IPv4}
	if l.Local.IsValid() {
		addrs = append(addrs, netip.PrefixFrom(l.Local, 24))
	}
	for _, a := range addrs {
		out = append(out, fmt.Sprintf("addr replace %s dev %s", a, l.Name))
	}
	out = append(out, fmt.Sprintf("addr replace %s dev %s nodad", l.spec.IPv6, l.Name))
	for _, o := range l.neighbours {
		for _, a := range []netip.Addr{o.IPv4, o.IPv6, o.Local} {
			if a.IsValid() {
				out = append(out, fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", a, o.MAC, l.Name))
			}
		}
	}
	return out
}

// tune sets what belongs to the device and survives its going down.
func (l *Link) tune() error {
	if l.spec.Promisc {
		if err := l.Host().ip("link set " + l.Name + " promisc on"); err != nil {
			return err
		}
	}
	if l.spec.NoOffloads {
		args := []string{"-K", l.Name}
		for _, f := range []string{"rx", "tx", "sg", "tso", "gso", "gro"} {
			args = append(args, f, "off")
		}
		if err := l.Host().tool("ethtool", "ethtool", "", args...); err != nil {
			return err
		}
	}
	if l.spec.Rate == 0 || l.emulated != nil {
		return nil
	}
	// The bucket holds what the rate brings in 4 ms (a tick of a slow clock), and some large
	// packets.
	burst := max(l.spec.Rate/8/250, 4*uint64(l.MTU), 16<<10)
	return l.Host().tool("tc", "iproute2", "", "qdisc", "replace", "dev", l.Name, "root", "tbf",
		"rate", strconv.FormatUint(l.spec.Rate, 10)+"bit", "burst", strconv.FormatUint(burst, 10), "latency", "50ms")
}

// carrierLimit is how long a link may take to go up or down. The kernel reports most changes at
// once and some after a second.
const carrierLimit = time.Minute

// await waits until all ends have a carrier, or none.
func (l *Link) await(up bool, ends ...end) error {
	var events []*sys.LinkEvents
	var fds []int
	defer func() {
		for _, e := range events {
			e.Close()
		}
	}()
	for _, x := range ends {
		err := x.host.Do(func() error {
			e, err := sys.WatchLinks()
			if err == nil {
				events, fds = append(events, e), append(fds, e.FD())
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("netns: %s: %w", x.host, err)
		}
	}
	deadline := time.Now().Add(carrierLimit)
	for {
		good := true
		var states []string
		for _, x := range ends {
			s, is, err := x.state()
			if err != nil {
				return fmt.Errorf("netns: %s: %w", x.host, err)
			}
			good = good && is == up
			states = append(states, fmt.Sprintf("%s of %s: %s", x.dev, x.host, s))
		}
		if good {
			return nil
		}
		rest := time.Until(deadline)
		if rest <= 0 {
			return fmt.Errorf("netns: the link %s of %s: expected carrier %t within %v: %s",
				l.Name, l.Host(), up, carrierLimit, strings.Join(states, ", "))
		}
		if _, err := sys.PollIn(int(rest.Milliseconds())+1, fds...); err != nil {
			return fmt.Errorf("netns: %w", err)
		}
		for _, e := range events {
			if err := e.Drain(); err != nil {
				return fmt.Errorf("netns: %w", err)
			}
		}
	}
}

// state is what the kernel says of a device, and whether packets pass it.
func (x end) state() (words string, up bool, err error) {
	err = x.host.Do(func() error {
		dir := "/sys/class/net/" + x.dev
		// Reading the carrier makes the kernel act now upon a change that it would look at within a
		// second, and waits for that. Of a device that is switched off it fails.
		os.ReadFile(dir + "/carrier")
		b, err := os.ReadFile(dir + "/operstate")
		if err != nil {
			return err
		}
		words = strings.TrimSpace(string(b))
		up = words == "up" || x.tap && words == "unknown"
		if x.ipv6.IsValid() {
			// An address may be bound to at once, but is received for only when a worker of the
			// kernel has added its route.
			b, err := os.ReadFile("/proc/thread-self/net/ipv6_route")
			if err != nil {
				return err
			}
			if !receives(string(b), x.ipv6) {
				up = false
				words += ", no local route for " + x.ipv6.String()
			}
			return nil
		}
		if b, err = os.ReadFile(dir + "/brport/state"); err != nil {
			return err
		}
		const forwarding = "3" // BR_STATE_FORWARDING
		port := strings.TrimSpace(string(b))
		up = up && port == forwarding
		words += ", bridge port state " + port
		return nil
	})
	return words, up, err
}

// receives reports whether a table of /proc/net/ipv6_route has the local route of an address.
func receives(table string, a netip.Addr) bool {
	const local = 0x80000000 // RTF_LOCAL
	for line := range strings.Lines(table) {
		// Destination, its length, source, its length, next hop, metric, references, uses, flags,
		// device.
		f := strings.Fields(line)
		if len(f) == 10 && f[0] == hex.EncodeToString(a.AsSlice()) && f[1] == "80" {
			if flags, err := strconv.ParseUint(f[8], 16, 32); err == nil && flags&local != 0 {
				return true
			}
		}
	}
	return false
}

// ip runs lines of ip(8) in the host, as one batch.
func (h *Host) ip(lines ...string) error {
	return h.tool("ip", "iproute2", strings.Join(lines, "\n")+"\n", "-batch", "-")
}

// tool runs a program that changes the host's devices.
func (h *Host) tool(name, pkg, stdin string, args ...string) error {
	path, err := testenv.Tool(name, pkg)
	if err != nil {
		return &MissingError{name, err}
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := h.start(cmd); err != nil {
		return fmt.Errorf("netns: %s: %s: %w", h.Name, name, err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && errors.As(err, &exit) {
		said := strings.TrimSpace(out.String())
		err = missing(said, fmt.Errorf("%w: %s%s", err, said, blamed(said, stdin)))
	}
	if err != nil {
		return fmt.Errorf("netns: %s: %s %s: %w", h.Name, name, strings.Join(args, " "), err)
	}
	return nil
}

// blamed is the line of a batch that ip complains of: "Command failed -:3".
func blamed(said, batch string) string {
	_, number, ok := strings.Cut(said, "Command failed -:")
	if !ok {
		return ""
	}
	if end := strings.IndexFunc(number, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		number = number[:end]
	}
	i, err := strconv.Atoi(number)
	lines := strings.Split(batch, "\n")
	if err != nil || i < 1 || i > len(lines) {
		return ""
	}
	return fmt.Sprintf(" (%q)", lines[i-1])
}
